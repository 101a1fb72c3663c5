"""What a value may take where nobody says more."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from meta_magic import ValueLimits, record
from meta_magic.errors import ValueLimitError
from meta_magic.replaying import value_budget
from meta_magic.trace import progress


def test_a_large_draw_of_no_use_takes_little_of_a_value():
    def draw():
        torch.manual_seed(0)
        large = torch.randn(3000, 3000)
        return large, torch.rand(3000, 3000), torch.randint(0, 9, (3,)).tolist()

    wanted = draw()[-1]
    with record(limits=ValueLimits(nbytes=2**24)):
        assert draw()[-1] == wanted


def test_what_is_kept_for_later_values_counts(monkeypatch):
    memory = SimpleNamespace(available=2**27)
    monkeypatch.setattr(value_budget.psutil, "virtual_memory", lambda: memory)
    with record():
        x = torch.ones(2**22)  # 16 MiB, which are kept
        assert x.sum().item() == 2**22
        with pytest.raises(ValueLimitError, match=r"\(36\.0 MiB are allowed"):
            x.repeat(2).sum().item()  # 16 + 32 of (128 + 16) / 4 MiB
        assert x[1:].cumsum(0)[-1].item() == 2**22 - 1  # 16 + 16 MiB


def test_the_memory_of_a_container_is_what_it_has_left(tmp_path, monkeypatch):
    group = tmp_path, "memory.max", "memory.current"
    monkeypatch.setattr(value_budget, "CONTROL_GROUPS", (group,))
    cpu = torch.device("cpu")
    free = value_budget.free_nbytes(cpu)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    assert value_budget.free_nbytes(cpu) > free // 2
    (tmp_path / "memory.max").write_text("4000\n")
    assert value_budget.free_nbytes(cpu) == 4000 - 3000 + 500


IN_A_LIMIT = """
import psutil
import torch
import meta_magic as mm

with mm.record():
    small, large = torch.ones(3), torch.ones(2**28)  # 1 GiB
    small.sum().item()
    process = psutil.Process()
    most = process.memory_info().vms + 2**29
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    try:
        large.cumsum(0)[-1].item()
    except mm.MetaMagicError as error:
        print(type(error).__name__, small.cumsum(0)[-1].item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system has the limit")
def test_a_value_that_a_limit_of_the_process_forbids_is_refused():
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_LIMIT], capture_output=True, check=True, text=True
    )
    assert ran.stdout == "ValueLimitError 3.0\n"


def multiply():
    x = torch.ones(1000, 1000)  # 2 GFLOPs
    return (x @ x).sum()


def test_a_value_that_takes_too_long_names_seconds_that_are_enough():
    with (
        pytest.raises(ValueLimitError, match="--value-seconds") as caught,
        record(limits=ValueLimits(seconds=1e-6)),
    ):
        multiply().item()
    (wanted,) = caught.value.wanted.items()
    assert wanted[0] == "seconds"
    with record(limits=ValueLimits(seconds=1000 * wanted[1])):
        assert multiply().item() == 10**9


def test_all_limits_that_are_too_low_are_named_at_once():
    limits = ValueLimits(nbytes=10**6, flops=10**8, seconds=1e-6)
    with pytest.raises(ValueLimitError) as caught, record(limits=limits):
        multiply().item()  # two matrices of 4 MB, and a number
    assert caught.value.wanted == {"nbytes": 8e6, "flops": 2.1e9, "seconds": 1}
    assert "--value-nbytes 8e6 --value-flops 2.1e9 --value-seconds 1 or" in str(
        caught.value
    )


def test_all_values_of_a_recording_take_six_times_as_long_at_most():
    with (
        pytest.raises(ValueLimitError, match="values of this block took 0 s"),
        record(limits=ValueLimits(seconds=1e-3)),
    ):
        for _ in range(10_000):
            torch.ones(100).sum().item()


def test_what_nobody_asked_for_takes_its_share_of_each_limit():
    limits = ValueLimits(nbytes=800, flops=80, seconds=8.0)
    assert limits.little(8) == ValueLimits(nbytes=100, flops=10, seconds=1.0)
    assert limits.little() == limits


def test_little_is_computed_where_a_guess_can_stand_for_the_value():
    def read():
        return torch.ones(2**24 + 1).sum().item()  # 64 MiB and 8 bytes

    with record():
        assert read() == read()
    with record(assume="values=nan") as trace:
        met = read()
    assert met != met  # noqa: PLR0124  it is nan
    assert trace.program.assumptions


@pytest.fixture
def shown(monkeypatch):
    """Return the lines of progress that are shown, each step one."""
    lines: list[str] = []
    monkeypatch.setattr(value_budget, "FIRST_AFTER", 0)
    monkeypatch.setattr(value_budget, "EVERY", 0)
    progress.OUTLETS.append(lines.append)
    yield lines
    progress.OUTLETS.remove(lines.append)


def test_a_line_says_which_value_is_computed_and_how_to_go_on(shown):
    with record():
        loss = torch.ones(3).square().sum()
        f"{loss:.2f}"
    line = test_a_line_says_which_value_is_computed_and_how_to_go_on.__code__
    assert shown[0].startswith(f"loss, line {line.co_firstlineno + 3}: 0.0 s of about ")
    assert shown[0].endswith("(to go on without: --assume values=nan)")
    assert len(shown) == 4  # ones, square, sum
    assert shown[-1] == ""


def test_a_line_is_replaced_in_the_output_of_a_cell(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(progress.sys, "stdout", stream)
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    progress.write_to_terminal("64 of 200, 9 s left")
    progress.write_to_terminal("")
    first, second = (line for line in stream.getvalue().split("\r") if line)
    assert first.strip() == "64 of 200, 9 s left"
    assert (second.strip(), len(second)) == ("", len(first))
