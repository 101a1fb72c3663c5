"""The charts of memory over time and of a roofline, as plotly gets them."""

import json
import re
from html import unescape

import numpy as np
import pytest
import torch
from IPython.utils.capture import capture_output
from torch import nn

import meta_magic as mm
from meta_magic import record
from meta_magic.view.charts import (
    CLEAR,
    N_COLUMNS,
    PLOTLY,
    choose_calls,
    list_dots,
    memory_bundle,
    roofline_bundle,
    treemap_bundle,
)


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


# The treemap of parameter bytes: a figure, an SVG and a line of text


def bundle_of(build):
    with mm.record() as trace:
        model = build()
    assert model is not None
    return treemap_bundle(trace)


def figure_of(bundle):
    return bundle[PLOTLY]["data"][0]


def areas(bundle):
    """Return the share of each box without children, by what is said of it."""
    found = re.findall(
        r'<div title="([^"]*)" style="flex:(\d+) [^"]*background', bundle["text/html"]
    )
    return {unescape(title): int(nbytes) for title, nbytes in found}


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def values(bundle):
    figure = figure_of(bundle)
    return dict(zip(figure["labels"], figure["values"], strict=True))


def test_without_parameters_there_is_no_chart():
    assert bundle_of(nn.ReLU) is None
    with mm.record() as trace:
        torch.ones(3).relu()
    assert treemap_bundle(trace) is None


def test_areas_are_as_the_bytes():
    bundle = bundle_of(lambda: nn.Sequential(linear(3, 1), linear(1, 1)))
    found = areas(bundle)
    assert found == {"0: Linear — 12 bytes": 12, "1: Linear — 4 bytes": 4}


def test_modules_that_are_alike_are_one_box():
    bundle = bundle_of(lambda: nn.Sequential(*(linear(4, 4) for _ in range(5))))
    assert values(bundle)["0-4: 5 x Linear"] == 5 * 16 * 4
    assert len(areas(bundle)) == 1


def test_what_is_in_a_run_counts_for_all_of_the_run():
    def block():
        return nn.Sequential(linear(2, 3), nn.ReLU(), linear(3, 1))

    bundle = bundle_of(lambda: nn.Sequential(block(), block(), block()))
    found = values(bundle)
    assert found["0-2: 3 x Sequential"] == 3 * (6 + 3) * 4
    assert found["0: 3 x Linear"] == 3 * 6 * 4
    assert found["2: 3 x Linear"] == 3 * 3 * 4


def test_own_parameters_beside_children_have_a_box():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.inner = linear(3, 2)

    bundle = bundle_of(Scaled)
    assert values(bundle)["its own parameters"] == 8
    assert sum(areas(bundle).values()) == 8 + 3 * 2 * 4


def test_ties_are_counted_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = linear(4, 10)
            self.head.weight = self.embed.weight

    bundle = bundle_of(Tied)
    assert "head: Linear" not in values(bundle)
    assert bundle["text/plain"].endswith("Tied — 160 bytes")


def test_the_figure_is_plain_json():
    bundle = bundle_of(lambda: nn.Transformer(16, 2, 2, 2, 32))
    assert set(bundle) == {PLOTLY, "text/html", "text/plain"}
    assert json.loads(json.dumps(bundle)) == bundle
    layout = bundle[PLOTLY]["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == CLEAR


def test_a_part_of_two_models_is_counted_in_the_first():
    with mm.record() as trace:
        part = linear(10, 10)
        first = nn.Sequential(part, linear(10, 1))
        second = nn.Sequential(part, linear(10, 2))
    assert first[0] is second[0]
    bundle = treemap_bundle(trace)
    assert sum(areas(bundle).values()) == 4 * (100 + 10 + 20)
    assert values(bundle)["all modules"] == 4 * (100 + 10 + 20)
