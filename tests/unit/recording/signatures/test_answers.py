"""Calls that are answered with no operator, by another dtype, or with a named tuple."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import meta_magic
from meta_magic.recording.intercept.served_functions import ServedFunctions
from meta_magic.session.record import record
from meta_magic.session.recording import shared_cache_by_device


def cast():
    x = torch.ones(3, 4)
    for _ in range(2):
        whole = x.to(torch.int64).float() + x.to(torch.float32).half()
        whole.bool().long().int().double().bfloat16().to(x)
    return whole


def lay_out():
    x = torch.ones(3, 4)
    for _ in range(2):
        x = (x.contiguous() + x.t().contiguous().t()).contiguous()
        x.expand(2, 3, 4).contiguous().reshape(6, 4)
    return x


def order():
    x = torch.ones(5, 7)
    for _ in range(2):
        values, places = x.sort(-1, descending=True)
        most = torch.topk(values + x, 3)
        least = x.min(0)
        x = x + most.values.sum() + least.indices.sum() + places
    return x


def drop_nothing():
    x = torch.ones(3, 4)
    for is_training in (False, True, False):
        x = functional.dropout(x, 0.5, is_training)
    return x


def write_what_was_returned_as_it_is():
    x = torch.ones(3, 4)
    for _ in range(2):
        x.float().add_(1)
        x.contiguous()[0] = 2
        x.to(torch.float32).t_()
    return x


def with_gradients():
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            shift = x.float().to(torch.float64) + x.detach().contiguous()
        y = x.to(torch.float16).float().contiguous() + shift
        y.sort()[0].sum().backward()
    return x


def put_sparse_ones_where_others_were():
    for size in (3, 4, 3):
        kept = [torch.ones(size, size) * 2 for _ in range(20)]
        del kept
        at = torch.tensor([[0, 1], [0, 1]])
        made = [
            torch.sparse_coo_tensor(at, torch.ones(2), (size, size), **UNCHECKED)
            for _ in range(20)
        ]
        for sparse in made:
            torch.mul(sparse, torch.ones(size, size))


def view_what_was_made():
    layer, x = nn.Linear(4, 5), torch.ones(2, 3, 4)
    for is_training in (False, True, False):
        with torch.set_grad_enabled(is_training):
            for bias in (layer.bias, layer.bias.detach(), None):
                y = functional.linear(x, layer.weight, bias)
                whole = None if y._base is None else y._base * 2
                y[0] = y[1] + 1 if not y.requires_grad else 0
                x = x + y.sum().detach()
    with torch.inference_mode():
        y = functional.linear(x, layer.weight, layer.bias)
    return whole, y, layer(x).view(-1).add_(1)


UNCHECKED = {"check_invariants": False}
PROGRAMS = (
    cast,
    lay_out,
    order,
    drop_nothing,
    write_what_was_returned_as_it_is,
    with_gradients,
    put_sparse_ones_where_others_were,
    view_what_was_made,
)


def run(program, *, cache=True):
    """Return the trace of a program."""
    torch.manual_seed(0)
    with record(cache=cache) as trace:
        kept = program()
    del kept
    return trace


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_answered_is_recorded_as_what_ran(program):
    shared_cache_by_device.clear()
    ran = run(program, cache=False)
    assert [run(program) == ran for _ in range(3)] == [True] * 3


def count_answered(monkeypatch, call):
    """Return how many calls were answered when a program ran for the third time."""
    answered = []
    answer = ServedFunctions.answer

    def note(self, *given):
        returned = answer(self, *given)
        answered.append(isinstance(returned, torch.Tensor | tuple))
        return returned

    for _ in range(2):
        with record():
            call()
    monkeypatch.setattr(ServedFunctions, "answer", note)
    with record():
        call()
    return sum(answered)


@pytest.mark.parametrize(
    ("call", "n_calls"),
    [
        (lambda x: x.to(torch.float16), 1),
        (lambda x: x.to(torch.float32), 1),
        (lambda x: x.to("cpu"), 0),
        (lambda x: x.contiguous().float(), 2),
        (lambda x: torch.topk(x, 2), 1),
        (lambda x: torch.tanh(x) + torch.sigmoid(x), 3),
        (lambda x: functional.linear(x.expand(2, 3, 4), x, x[:, 0]), 3),
    ],
)
def test_a_cast_and_what_changes_nothing_is_answered(monkeypatch, call, n_calls):
    x = torch.empty(3, 4, device="meta")
    assert count_answered(monkeypatch, lambda: call(x)) == n_calls


def test_a_tensor_that_is_returned_as_it_is_is_the_same_object():
    for _ in range(3):
        with record():
            x = torch.ones(3)
            assert x.float() is x
            assert x.contiguous() is x
            assert x.to(torch.float32) is x
            assert type(torch.ones(2, 3).sort()) is torch.return_types.sort


def test_a_layer_of_three_dimensions_is_answered_with_a_view():
    layer, x = nn.Linear(4, 5, device="meta"), torch.empty(2, 3, 4, device="meta")
    with record(cache=False), torch.no_grad():
        right = layer(x)
    for _ in range(3):
        with record(), torch.no_grad():
            y = layer(x)
            assert (y._is_view(), y._base.shape) == (True, right._base.shape)
            assert (y._version, y._base._version) == (0, 0)
            y.add_(1)
            assert (y._version, y._base._version) == (1, 1)
            assert y._base.untyped_storage() is y.untyped_storage()


def test_one_call_that_is_not_to_be_answered_leaves_the_others_so(monkeypatch):
    x = torch.empty(3, 4, device="meta")
    with record():
        functional.relu(torch.ones(2, 2), inplace=True)
        functional.dropout(torch.ones(2, 2), 0.5, inplace=True)
        torch.atleast_1d([torch.ones(2, 2)] * 2)

    def call():
        functional.relu(torch.zeros(5), inplace=True)
        return functional.dropout(functional.relu(x))

    assert count_answered(monkeypatch, call) == 2


PATCHED_BEFORE = """
import torch
from torch.nn import functional, init
scale, relu, uniform = 1, functional.relu, init.uniform_
def patched_relu(x, inplace=False):
    return relu(x) if scale == 1 else relu(x) * scale
def patched_uniform(tensor, a=0.0, b=1.0, generator=None):
    return uniform(tensor, a, b * scale)
functional.relu, init.uniform_ = patched_relu, patched_uniform
from meta_magic.session.record import record
net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()).to("meta")
def run(cache):
    global scale
    with record(cache=cache) as trace:
        for scale in (1, 1, 2):
            x = init.uniform_(torch.empty(3))
            net(functional.relu(x))
    return [(call.op, call.arguments) for call in trace.ops]
right = run(False)
assert [run(True) == right for _ in range(3)] == [True] * 3
"""


def test_what_was_patched_before_the_import_is_not_taken_for_torchs():
    result = subprocess.run(
        [sys.executable, "-c", PATCHED_BEFORE],
        cwd=Path(meta_magic.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_call_that_needs_gradients_is_looked_at_once(monkeypatch):
    given = []
    find = ServedFunctions.find
    monkeypatch.setattr(
        ServedFunctions, "find", lambda self, *a: given.append(a[0]) or find(self, *a)
    )
    layer = nn.Linear(3, 3, device="meta")
    for _ in range(3):
        with record():
            x = torch.ones(2, 3)
            with torch.no_grad():
                functional.linear(x, layer.weight)
            given.clear()
            y = functional.linear(x, layer.weight)
        assert y.requires_grad
        assert len(given) <= 1
