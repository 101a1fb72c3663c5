"""The call site that an operator comes from, and the names of functions."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meta_magic import record
from meta_magic.recording.identities.call_sites import describe_function


def test_a_backward_operator_has_the_line_and_module_of_its_forward_one():
    with record() as trace:
        layer = nn.Linear(3, 4)
        loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
    (forward,) = (c for c in trace.ops if c.op == "aten.addmm.default")
    products = [c for c in trace.ops if c.op == "aten.mm.default"]
    assert products
    for call in products:
        assert (call.line, call.module, call.phase) == (forward.line, "", "backward")


def test_the_position_has_columns_of_the_expression():
    with record() as trace:
        x = torch.ones(3)
        y = (x + 1) * 2
    call = trace.ops[1]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = source[call.position.line - 1]
    assert line[call.position.column : call.position.end_column] == "x + 1"
    assert y.is_meta


def test_calls_of_a_helper_in_another_file_have_the_lines_of_the_forward():
    made = {}
    exec(compile("def twice(f, x): return f(f(x))", "helpers.py", "exec"), made)
    twice = made["twice"]

    class Model(nn.Module):
        def forward(self, x):
            x = twice(torch.relu, x)
            return twice(torch.relu, twice(torch.tanh, x))

    model = Model()
    with record() as trace:
        model(torch.ones(2))
        model(torch.ones(2))
    first = trace.ops[1].line
    met = [(c.op.split(".")[1], c.line - first) for c in trace.ops if c.module == ""]
    once = [("relu", 0)] * 2 + [("tanh", 1)] * 2 + [("relu", 1)] * 2
    assert met == once * 2
    assert {c.position.file for c in trace.ops if c.module == ""} == {"helpers.py"}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.mm, "torch.mm"),
        (torch.matmul, "torch.matmul"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__"),
        (torch.linalg.svd, "torch.linalg.svd"),
        (F.linear, "torch.nn.functional.linear"),
        (torch.nn.init.normal_, "torch.nn.init.normal_"),
        (None, None),
    ],
)
def test_a_function_has_its_public_name(function, name):
    assert describe_function(function) == name


def choose_dimension():
    return F.softmax(torch.ones(3))


def copy_a_tensor():
    return torch.tensor(torch.ones(2))


def read_a_gradient():
    return torch.ones(2, requires_grad=True).mul(2).grad


@pytest.mark.parametrize("call", [choose_dimension, copy_a_tensor, read_a_gradient])
def test_a_warning_of_torch_has_the_line_that_it_has_outside_of_a_recording(call):
    with warnings.catch_warnings(record=True) as real:
        warnings.simplefilter("always")
        call()
    with warnings.catch_warnings(record=True) as recorded, record():
        warnings.simplefilter("always")
        call()
    wanted = [(str(w.message), w.filename, w.lineno) for w in real]
    assert wanted[0][1] == __file__
    assert [(str(w.message), w.filename, w.lineno) for w in recorded] == wanted


@pytest.mark.parametrize(("action", "n"), [("default", 2), ("once", 1), ("always", 3)])
def test_a_warning_of_torch_is_shown_as_often_as_the_filters_say(action, n):
    with warnings.catch_warnings(record=True) as recorded, record():
        warnings.simplefilter(action)
        F.l1_loss(torch.ones(3), torch.ones(3, 1))  # what recording imports, it imports
        recorded.clear()
        for _ in range(2):
            F.softmax(torch.ones(3))
        F.softmax(torch.ones(3))
    assert len(recorded) == n


def test_a_filter_of_the_cell_s_module_holds_for_a_warning_of_torch():
    with warnings.catch_warnings(record=True) as recorded, record():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__)
        choose_dimension()
    assert not recorded
