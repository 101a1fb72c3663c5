"""Modules nested deeper than Python lets a function call itself a few times over."""

import json
import sys

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from meta_magic.view.payload import build_payload
from tests.unit.eager import assert_bit_equal, build_twice

DEPTH = 500


def nest():
    module = nn.Linear(2, 2)
    for _ in range(DEPTH):
        module = nn.Sequential(module)
    return module


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        module = nest()
    assert module is not None
    return trace


def test_a_tree_of_any_depth_is_described(trace):
    (root,) = trace.modules
    *_, last = root.walk()
    assert last.fqn == ".".join("0" * DEPTH)
    assert [tensor.shape for tensor in last.tensors] == [(2, 2), (2,)]


def test_the_calls_of_a_deep_module_that_is_gone_are_known():
    with record() as trace:
        module = nn.Linear(2, 2)
        for _ in range(DEPTH // 5):
            module = nn.Sequential(module)
        module(torch.ones(2))
        del module
    assert {node.n_calls for node in trace.modules[0].walk()} == {1}


@pytest.mark.parametrize("show", ["summary", "payload", "page"])
def test_a_deep_tree_is_shown(trace, show, tmp_path):
    limit = sys.getrecursionlimit()
    if show == "summary":
        # Each says what it holds, the innermost a Linear.
        assert trace.summary().count("1 x Sequential") == DEPTH - 1
    elif show == "payload":
        assert json.dumps(build_payload(trace)).count('"Sequential"') == DEPTH
    else:
        trace.to_html(tmp_path / "page.html")
    assert sys.getrecursionlimit() == limit


def test_a_deep_module_is_made_real():
    real, made, _, _ = build_twice(nest)
    materialize(made)
    assert_bit_equal(made, real)
