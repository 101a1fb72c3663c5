"""The charts of memory over time and of a roofline, as plotly gets them."""

import numpy as np
import pytest
import torch
from IPython.utils.capture import capture_output
from torch import nn

import meta_magic as mm
from meta_magic import record
from meta_magic.view.charts import (
    N_COLUMNS,
    choose_calls,
    list_dots,
    memory_bundle,
    roofline_bundle,
)
from meta_magic.view.treemap import PLOTLY


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = nn.Linear(256, 8, bias=False)
        loss = model(torch.zeros(4, 256)).sum()
        loss.backward()
    assert model.weight.grad.is_meta
    return trace


def test_the_areas_add_up_to_the_bytes_alive(trace):
    areas = memory_bundle(trace)[PLOTLY]["data"]
    assert {area["name"] for area in areas} >= {"parameter", "gradient"}
    sums = np.sum([area["y"] for area in areas], axis=0)
    assert tuple(sums.tolist()) == trace.memory.live_nbytes


def test_the_peak_is_marked(trace):
    bundle = memory_bundle(trace)
    (mark,) = bundle[PLOTLY]["layout"]["annotations"]
    memory = trace.memory
    assert (mark["x"], mark["y"]) == (memory.peak_index, memory.peak_nbytes)
    assert bundle["text/plain"].endswith(mark["text"])
    assert f"#{memory.peak_index} aten." in mark["text"]


def test_of_many_calls_no_peak_is_lost():
    live = np.arange(46_000) % 7
    live[31_337] = 10**12
    calls = choose_calls(live)
    assert 31_337 in calls
    assert len(calls) <= 2 * N_COLUMNS
    assert [*choose_calls(live[:9])] == [*range(9)]


def test_in_a_terminal_the_chart_is_a_line(shell):
    shell.run_cell("%%meta\nx = torch.ones(2, 3)")
    with capture_output() as captured:
        shell.user_ns["_meta"].charts("memory")
    peak = "peak 24 bytes: #0 aten.ones.default, line 2"
    assert captured.stdout == f"Memory over 1 operators: {peak}\n"


def test_an_unknown_chart_is_refused_with_those_there_are(trace):
    with pytest.raises(ValueError, match="choose parameters or memory or roofline"):
        trace.charts("time")


@pytest.fixture(scope="module")
def products():
    with record() as products:
        model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU())
        model(torch.ones(512, 512)).clone()
    assert model[0].weight.is_meta
    return products


def test_operators_stand_at_what_they_do_for_a_byte_and_in_a_second(products):
    *_, dots = roofline_bundle(products, "h100-sxm")[PLOTLY]["data"]
    found = {
        op: (x, y) for op, x, y in zip(*map(dots.get, ["text", "x", "y"]), strict=1)
    }
    assert {*found} == {"aten.mm.default", "aten.relu.default"}
    # Three matrices of 512 x 512 float32 for 2 x 512^3 FLOPs, at the peak of float32.
    assert found["aten.mm.default"] == pytest.approx((2 * 512 / 12, 66.9e12))
    # An operation for the 8 bytes of each element, at 3.35 TB/s.
    assert found["aten.relu.default"] == pytest.approx((1 / 8, 3.35e12 / 8))


def test_initialization_is_not_counted(products):
    line = products.cost.roofline("t4")
    dots = list_dots(line)
    assert "aten.uniform_.default" in line.by_op
    assert "aten.uniform_.default" not in {dot.op for dot in dots}
    expected = line.seconds - line.by_phase["init"]
    assert sum(dot.seconds for dot in dots) == pytest.approx(expected)


def test_each_peak_that_is_used_is_a_roof(products):
    *roofs, _ = roofline_bundle(products, "h100-sxm")[PLOTLY]["data"]
    names = [roof["name"] for roof in roofs]
    assert names == ["float32 66.9 TFLOPs/s", "elementwise 66.9 TFLOPs/s"]
    assert roofs[0]["x"][1] == pytest.approx(66.9 / 3.35)
    assert list(roofs[0]["y"][1:]) == [66.9e12, 66.9e12]
    *roofs, _ = roofline_bundle(products, "tpu-v6e")[PLOTLY]["data"]
    assert [roof["name"] for roof in roofs] == ["bfloat16 918.0 TFLOPs/s"]


def test_an_unknown_device_has_no_roofline(products):
    with pytest.raises(mm.UnknownDeviceError, match="Known are"):
        products.charts("roofline", device="abacus")
