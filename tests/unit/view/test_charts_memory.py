"""The chart of memory over time, as plotly is given it."""

import numpy as np
import pytest
import torch
from IPython.utils.capture import capture_output
from torch import nn

from meta_magic import record
from meta_magic.view.charts import PLOTLY
from meta_magic.view.charts_memory import N_COLUMNS, choose_calls, memory_bundle


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


def test_without_memory_charts_says_so(shell):
    shell.run_cell("%%meta\nx = torch.ones(0)")
    with capture_output() as captured:
        shell.user_ns["_meta"].charts("memory")
    assert captured.stdout == "no tensor of this trace takes memory\n"


def test_an_unknown_chart_is_refused_with_those_there_are(trace):
    with pytest.raises(ValueError, match="choose parameters or memory or roofline"):
        trace.charts("time")
