"""The Fit panel: growth of memory in Python, and in the browser's JavaScript."""

import json

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.cost.device_table import list_devices
from meta_magic.cost.memory_timeline import take_sample
from meta_magic.trials.fit import Recordings, find_fitting, fit_trace
from meta_magic.view.fits_of_sizes import NOTHING, FitsOf, Growth, offer_fits
from meta_magic.view.payload import memory_payload
from tests.run_node import run_node
from tests.unit.view.panels import TIMEOUT


def train(batch, width=4096):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(2)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):  # in the second one there is state of the optimizer
        model(torch.ones(batch, width)).sum().backward()
        optimizer.step()


@pytest.fixture
def trace():
    batch = 8
    with record() as trace:
        train(batch)
    return trace


@pytest.fixture
def ask():
    """Ask for a fit, and wait for all that is sent."""

    def work_out(trace, name="batch", choices=(), on_sent=lambda _: None, **more):
        sent = []
        fits = FitsOf(trace, lambda **traits: (sent.append(traits), on_sent(fits)))
        asked = {"name": name, "choices": [*choices], "device": "t4", **more}
        fits.receive(json.loads(json.dumps(asked)))
        fits.wait(TIMEOUT)
        return sent

    return work_out


def last(sent, name):
    return next(traits[name] for traits in reversed(sent) if name in traits)


def test_it_offers_the_sizes_that_the_cell_names(trace):
    offer = offer_fits(trace)
    assert offer["sizes"] == {"batch": 8}
    assert "checkpointing" in offer["choices"]
    assert offer["reason"] == ""


def test_a_cell_without_a_size_shows_how_to_have_one():
    with record() as trace:
        torch.ones(3)
    assert offer_fits(trace)["reason"] == NOTHING


def test_a_cell_that_cannot_be_run_again_says_why():
    variables = {"record": record}
    exec("with record() as trace:\n    batch = 2", variables)
    assert "is run again" in offer_fits(variables["trace"])["reason"]


def test_the_largest_size_is_that_of_fit(trace, ask):
    sent = ask(trace)
    (growth,) = last(sent, "growths")
    fit = fit_trace(trace, "t4", {"batch": ...}).sizes["batch"]
    assert growth["largest"] == fit.largest
    assert growth["recorded"] == fit.recorded
    assert growth.keys() == {*Growth.__dataclass_fields__}
    assert last(sent, "fit_state") == {"is_running": False, "message": ""}


def test_with_the_numbers_of_sliders_it_is_that_of_a_cell_with_them(ask):
    with record() as trace:
        batch, width = 8, 256
        train(batch, width)
    with record() as other:
        batch, width = 8, 512
        train(batch, width)
    sent, expected = ask(trace, at={"width": 512}), ask(other)
    for name in ("growths", "stretches"):
        assert last(sent, name) == last(expected, name)
    assert last(sent, "fit_at") == {"width": 512}
    assert offer_fits(trace, {"width": 512}) == offer_fits(other)


def test_each_choice_is_shown_as_soon_as_it_is_known(trace, ask):
    sent = ask(trace, choices=["sgd", "fused"])
    numbers = [len(traits["growths"]) for traits in sent if "growths" in traits]
    assert numbers == [1, 2, 3, 4]
    choices = [growth["choices"] for growth in last(sent, "growths")]
    assert choices == [(), ("sgd",), ("fused",), ("sgd", "fused")]
    peaks = {growth["choices"]: growth["largest"] for growth in last(sent, "growths")}
    assert peaks["sgd",] > peaks[()]


@pytest.fixture
def resized():
    """A storage that is resized has several stretches, in between those of others."""
    batch = 8
    with record() as trace:
        grown = torch.empty(batch)
        rows = torch.ones(3, batch)
        grown.resize_(5 * batch)
        rows = rows + 1
    return trace


@pytest.mark.parametrize("of", ["trace", "resized"])
def test_the_stretches_are_those_of_the_payload(of, request, ask):
    trace = request.getfixturevalue(of)
    stretches, payload = last(ask(trace), "stretches")["batch"], memory_payload(trace)
    at = stretches["sizes"].index(8)
    nbytes = [stretches["rows"][row][at] for row in stretches["row"]]
    assert nbytes == [payload["sizes"][number] for number in payload["nbytes"]]


def test_it_can_be_stopped(trace, ask):
    sent = ask(trace, on_sent=lambda fits: fits.receive({}))
    assert last(sent, "fit_state") == {"is_running": False, "message": "stopped"}
    assert not any("growths" in traits for traits in sent)


def test_it_waits_while_something_else_is_recorded(trace):
    sent = []
    fits = FitsOf(trace, lambda **traits: sent.append(traits))
    with record():
        fits.receive({"name": "batch", "choices": [], "device": "t4"})
        fits.wait(0.5)
        assert not any("growths" in traits for traits in sent)
    fits.wait(TIMEOUT)
    assert len(last(sent, "growths")) == 1


SIZES = (1, 5, 64, 777, 1_000_003)
ROOMS = sorted({device.nbytes for device in list_devices() if device.nbytes})[::3]


def attend(batch, length, width=64):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        layer(torch.ones(batch, length, width)).sum().backward()
        optimizer.step()


def record_attention(batch=4, length=32):
    with record() as trace:
        attend(batch, length)
    return trace


@pytest.fixture(scope="module", params=["batch", "length"])
def worked_out(request):
    """Return the name of a size, what Python knows, and what the browser does."""
    trace, sent, name = record_attention(), {}, request.param
    fits = FitsOf(trace, lambda **traits: sent.update(traits))
    fits.receive({"name": name, "choices": [], "device": "t4"})
    fits.wait(TIMEOUT)
    sent = {
        "growth": sent["growths"][0],
        "stretches": sent["stretches"][name],
        "sizes": SIZES,
        "rooms": ROOMS,
    }
    return name, trace, run_node("growth_dump.mjs", given=json.dumps(sent).encode())


def test_peaks_are_those_of_all_calls_within_rounding(worked_out):
    name, trace, found = worked_out
    known = find_fitting(Recordings(trace), name, ROOMS[0]).interpolation
    for size, peak in zip(SIZES, found["peaks"], strict=True):
        assert abs(peak - known.peak_nbytes(size)) <= 1


def test_the_largest_sizes_are_those_of_python(worked_out):
    name, trace, found = worked_out
    recordings = Recordings(trace)
    expected = [find_fitting(recordings, name, room).largest for room in ROOMS]
    assert found["largest"] == expected


def test_the_stretches_are_those_of_a_recording_there(worked_out):
    name, _, found = worked_out
    for size in (5, 64, 777):
        sample = take_sample(record_attention(**{name: size}))
        assert found["stretches"][SIZES.index(size)] == [*sample.stretches]
