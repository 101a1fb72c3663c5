"""Devices: what is known of them, and what users add."""

import tomllib
from importlib.resources import files

import pytest
import torch

import meta_magic as mm
from meta_magic.cost import device_table
from meta_magic.cost.device_table import find_device, list_devices

DTYPES = {"float8", "bfloat16", "float16", "tfloat32", "float32", "float64", "int8"}


@pytest.fixture
def known(monkeypatch):
    """Take back what a test adds."""
    before = dict(device_table.known_devices())
    yield
    device_table.known_devices().clear()
    device_table.known_devices().update(before)


@pytest.mark.parametrize("device", list_devices(), ids=lambda d: d.name)
def test_each_device_has_a_source_and_numbers_in_plain_units(device):
    assert device.source.startswith("https://")
    assert device.basis in {"published", "quoted", "derived"}
    assert set(dict(device.peaks)) <= DTYPES
    assert all(1e12 < flops < 1e16 for _, flops in device.peaks)
    assert 1e11 < device.bandwidth < 1e13
    assert device.nbytes == 0 or 1e10 < device.nbytes < 1e12


@pytest.mark.parametrize("device", list_devices(), ids=lambda d: d.name)
def test_narrower_dtypes_are_not_slower(device):
    order = ["float64", "float32", "tfloat32", "bfloat16", "float8"]
    rates = [flops for name in order for d, flops in device.peaks if d == name]
    assert rates == sorted(rates)


def test_a_dozen_accelerators_are_known_and_each_once():
    names = [device.name for device in list_devices()]
    assert len({*names}) == len(names) >= 14
    table = tomllib.loads(
        (files("meta_magic.cost") / "devices.toml").read_text("utf-8")
    )
    assert [*table] == names


@pytest.mark.parametrize("name", ["h100-sxm", "H100 SXM", "h100_sxm", " h100-SXM "])
def test_a_device_is_found_however_it_is_written(name):
    # NVIDIA's sheet: 989.4 TFLOP/s of bfloat16 without sparsity, 3.35 TB/s, 80 GB.
    device = find_device(name)
    assert device.find_peak(torch.bfloat16).flops == 989.4e12
    assert (device.bandwidth, device.nbytes) == (3.35e12, 80e9)


def test_an_unknown_device_is_an_error_with_the_list():
    with pytest.raises(mm.UnknownDeviceError) as caught:
        find_device("h100-smx")
    text = str(caught.value)
    assert "'h100-smx'" in text
    assert "did you mean 'h100-sxm'?" in text
    assert all(device.name in text for device in list_devices())
    assert "add_devices" in text


def test_what_is_like_none_gets_no_guess():
    with pytest.raises(mm.UnknownDeviceError, match=r"are known\. Known are t4"):
        find_device("abacus")


def test_float32_is_that_of_tensor_cores_where_it_may():
    device = find_device("a100-sxm")
    assert device.find_peak(torch.float32).flops == 19.5e12
    assert device.find_peak(torch.float32, uses_tf32=True).flops == 156e12
    assert find_device("t4").find_peak(torch.float32, uses_tf32=True).flops == 8.1e12


def test_a_dtype_that_a_device_lacks_is_computed_in_the_next_wider():
    peak = find_device("t4").find_peak(torch.bfloat16)
    # float16 has not the range of bfloat16.
    assert peak.flops == 8.1e12
    assert peak.note == "NVIDIA T4 has no peak for bfloat16: that of float32 is taken"
    assert find_device("l40s").find_peak(torch.float8_e4m3fn).note is None
    assert find_device("a100-sxm").find_peak(torch.float8_e5m2).flops == 312e12


def test_where_nothing_is_wider_the_slowest_is_taken_and_that_is_said():
    peak = find_device("tpu-v5e").find_peak(torch.float32)
    assert peak.flops == 197e12
    assert "no peak for float32" in peak.note


def test_complex_numbers_are_computed_as_their_parts():
    device = find_device("a100-sxm")
    assert device.find_peak(torch.complex64) == device.find_peak(torch.float32)


MINE = """
[my-board]
title = "My board"
bandwidth = 1e12
memory = 32e9
source = "https://example.org/sheet"
flops = { float32 = 50e12 }
"""


@pytest.mark.usefixtures("known")
def test_users_add_theirs(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    assert mm.add_devices(tmp_path / "mine.toml") == ("my-board",)
    device = find_device("my board")
    assert (device.title, device.bandwidth, device.nbytes) == ("My board", 1e12, 32e9)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            MINE.replace("bandwidth", "width"),
            "'my-board' in mine.toml lacks 'bandwidth'",
        ),
        (MINE.replace("50e12", '"fast"'), "could not convert string to float: 'fast'"),
        (MINE.replace("1e12", "0"), "is wrong: 0 is not above 0"),
        (MINE.replace("float32 = 50e12", ""), "is wrong: flops are of no dtype"),
        ("my-board = 3", "a device has flops"),
        ("[my", "mine.toml is no TOML"),
    ],
)
def test_a_file_that_lacks_something_is_refused_and_adds_nothing(tmp_path, text, words):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(mm.DeviceTableError, match=words):
        mm.add_devices(tmp_path / "mine.toml")
    assert "my-board" not in {device.name for device in list_devices()}


@pytest.mark.parametrize(
    ("called", "name"),
    [("a100-80gb", "a100-sxm"), ("A100 40GB", "a100-sxm-40gb"), ("h200", "h200-sxm")],
)
def test_words_of_a_title_name_the_one_device_that_has_them(called, name):
    assert find_device(called).name == name


def test_words_that_two_titles_have_name_neither():
    with pytest.raises(mm.UnknownDeviceError, match="h100"):
        find_device("h100")
