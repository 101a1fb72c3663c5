"""The statements, variables, modes and sizes of a block that runs again."""

import ast

import pytest
import torch
from torch import nn

import meta_magic as mm
from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.blocks import list_sizes, set_sizes
from meta_magic.trials.fit import Recordings
from meta_magic.trials.trial import ask_trial, check_rerun


def compute(weight):
    """Keep an array for the backward pass, if there is to be one."""
    return (weight * 2).exp().exp().sum()


def list_dtypes(trace, _variables=None):
    made = [call.outputs[0].dtype for call in trace.ops]
    return [str(dtype) for dtype in made], trace.memory.peak_nbytes


def test_contexts_beside_the_recording_are_entered_again():
    weight = nn.Parameter(torch.ones(2**20))
    with torch.no_grad(), record() as before:
        compute(weight)
    with mm.record(as_device="cpu") as after, torch.no_grad():
        compute(weight)
    with torch.autocast("cpu"), record() as between, torch.no_grad():
        compute(weight @ torch.ones(2**20))
    with record() as keeping:
        compute(weight)
    for trace in (before, after, between, keeping):
        assert ask_trial(trace, list_dtypes) == list_dtypes(trace)
    assert "torch.bfloat16" in list_dtypes(between)[0]
    assert before.memory.peak_nbytes < keeping.memory.peak_nbytes


def test_the_default_dtype_is_as_it_was():
    with record() as trace:
        torch.ones(2)
    torch.set_default_dtype(torch.float64)
    try:
        assert ask_trial(trace, list_dtypes) == (["torch.float32"], 8)
    finally:
        torch.set_default_dtype(torch.float32)


def make_recording():
    return record()


def test_a_recording_among_unknown_contexts_is_refused():
    with make_recording() as trace, torch.no_grad():
        torch.ones(2)
    with pytest.raises(TrialError, match="which of its contexts"):
        ask_trial(trace, list_dtypes)


WIDTH = 5


def names_of(trace):
    return list_sizes(check_rerun(trace))


def test_what_a_block_reads_is_as_it_was_before():
    rows, zero, text, flag, unread = 4, 0, "8", True, 3
    with record() as trace:
        torch.ones(rows, WIDTH + zero + len(text) + flag)
    assert names_of(trace) == {"rows": 4, "WIDTH": 5}
    assert unread


def test_what_it_binds_to_a_number_is_that():
    rows = 1
    with record() as trace:
        rows, (columns, depth) = 4, (6, 7)
        other = unread = 8
        torch.ones(rows, columns, depth, other)
    assert names_of(trace) == {"rows": 4, "columns": 6, "depth": 7, "other": 8}
    assert unread


@pytest.mark.parametrize("name", ["rows", "columns", "depth"])
def test_the_text_says_what_a_run_does(name):
    rows = 4
    with record() as trace:
        columns = 6
        depth = rows + columns
        torch.ones(rows, columns, depth)
    size = Recordings(trace).read_size(name)
    assert size == {"rows": rows, "columns": columns, "depth": depth}[name]


def run(text, **sizes):
    variables = {}
    exec(compile(set_sizes(ast.parse(text), sizes), "<block>", "exec"), variables)
    return variables


@pytest.mark.parametrize(
    "text",
    [
        "B = 2\nx = [B]",
        "A = B = 2\nx = [B]",
        "B, T = 2, 3\nx = [B]",
        "[T, (B, *rest)] = 1, (2, 3)\nx = [B]",
        "B: int = 2\nx = [B]",
        "B = 1\nB += 1\nx = [B]",
        "if True:\n    B = 2\nx = [B]",
        "x = [B := 2]",
        "if (B := 2):\n    x = [B]",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    B = 2\nx = [B]",
        "match 1:\n    case 1:\n        B = 2\nx = [B]",
        "with open('/dev/null'):\n    B = 2\nx = [B]",
        "for B in [2]:\n    x = [B]",
        "for i, (B, T) in enumerate([(2, 3)]):\n    x = [B]",
    ],
)
def test_a_name_has_its_value_however_it_is_bound(text):
    assert run(text)["x"] == [2]
    assert run(text, B=7)["x"] == [7]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    B = 2\n    return [B]\nx = f()",
        "class A:\n    B = 2\nx = [A.B]",
        "x = [B for B in [2]]",
        "f = lambda B: [B]\nx = f(2)",
        "class A: pass\na = A()\na.B = 2\nx = [a.B]",
    ],
)
def test_the_names_of_functions_and_classes_are_others(text):
    assert run(text, B=7)["x"] == [2]


def test_lines_stay_where_they_are():
    text = "B = 2\n\n\nx = 1 / 0"
    with pytest.raises(ZeroDivisionError) as error:
        run(text, B=7)
    assert error.traceback[-1].lineno == 3  # counted from 0
