"""Facts that follow from the rows of a program; expected by reading the code."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import meta_magic as mm
from meta_magic.trace.derived_facts import find_firsts, first_operators

LINEAR = ["t", "view", "mm", "_unsafe_view"]
"""What ``F.linear`` without a bias runs, given three dimensions."""


def list_calls(trace):
    """Return (function, its operators) for each call, without what makes tensors."""
    calls = {}
    firsts = first_operators(trace.program.with_raised)
    for call, first in zip(trace.ops, firsts, strict=True):
        function = (call.function or "").rpartition(".")[2]
        _, ops = calls.setdefault(first, (function, []))
        ops.append(call.op.split(".")[1])
    return [call for call in calls.values() if call[0] not in ("zeros", "empty")]


@pytest.fixture(params=[True, False], ids=["cache", "no cache"])
def cache(request):
    return request.param


def test_each_turn_of_a_loop_is_a_call(cache):
    with mm.record(cache=cache) as trace:
        x, w = torch.zeros(2, 3, 8), torch.zeros(8, 8)
        for _ in range(5):
            x = F.linear(x, w)
    assert list_calls(trace) == [("linear", LINEAR)] * 5


def test_each_step_of_a_recursion_is_a_call(cache):
    def descend(x, n):
        return descend(x @ x, n - 1) @ x if n else x

    with mm.record(cache=cache) as trace:
        descend(torch.zeros(3, 2, 2), 3)
    ((function, ops), *others) = list_calls(trace)
    assert function == "matmul"
    assert "bmm" in ops
    assert others == [(function, ops)] * 5


def test_a_function_that_torch_wrote_of_others_is_one_call():
    attention = nn.MultiheadAttention(8, 2)
    with mm.record() as trace:
        x = torch.zeros(5, 1, 8)
        with torch.no_grad():
            attention.train()(x, x, x)
    assert {name for name, _ in list_calls(trace)} == {"multi_head_attention_forward"}
    assert len(list_calls(trace)) == 1


def test_a_module_and_what_stands_beside_it_are_a_call_each():
    with mm.record() as trace:
        module, x = nn.Linear(4, 4, device="meta"), torch.zeros(2, 4)
        module(x) + x
    assert list_calls(trace)[-2:] == [("linear", ["t", "addmm"]), ("add", ["add"])]


def test_what_no_function_called_stands_alone():
    with mm.record() as trace:
        x = torch.zeros(2, 3)
        for _ in range(2):
            x = x.T
    assert list_calls(trace) == [("", ["permute"])] * 2


def test_operators_of_a_backward_pass_stand_alone():
    with mm.record() as trace:
        w = torch.zeros(8, 8, requires_grad=True)
        F.linear(torch.zeros(2, 3, 8), w).sum().backward()
    backward = [ops for name, ops in list_calls(trace) if name == "backward"]
    assert len(backward) > 3
    assert {len(ops) for ops in backward} == {1}


def test_an_operator_that_raised_belongs_to_the_call_that_made_it():
    with pytest.raises(RuntimeError), mm.record() as trace:
        F.cross_entropy(torch.zeros(2, 3), torch.zeros(2))
    assert list_calls(trace)[-1][1] == ["_log_softmax", "nll_loss_forward"]


def test_each_number_has_the_first_index_at_which_it_stands():
    numbers = np.array([2, 0, 2, 0, 4])
    assert find_firsts(numbers, 5).tolist() == [1, -1, 0, -1, 4]
    assert find_firsts(np.array([], np.int64), 2).tolist() == [-1, -1]
