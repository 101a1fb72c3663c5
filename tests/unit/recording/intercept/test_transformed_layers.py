"""Layers that torch traces, maps or runs again are recorded as they are."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

from tests.unit.recording.intercept.layer_programs import (
    Block,
    assert_recorded_alike,
    call_inside,
    run,
    trace_layers,
)


def apply(block, parameters, x):
    return functional_call(block, parameters, (x,))


def double(block, x):
    own = {name: p.detach() * 2 for name, p in block.named_parameters()}
    return apply(block, own, x)


def stack(block, x):
    state, _ = stack_module_state([block, block])
    return vmap(apply, (None, 0, None))(block, state, x)


TRANSFORMS = {
    "other parameters": double,
    "mapped": lambda block, x: vmap(block)(x),
    "differentiated": lambda block, x: grad(lambda x: block(x).sum())(x),
    "stacked": stack,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_layer_within_a_transform_is_recorded_as_it_is(name):
    def program():
        block, x = Block(nn.Linear(4, 4), nn.SiLU()), torch.ones(2, 4)
        for _ in range(2):
            call_inside(block, x)
            call_inside(TRANSFORMS[name], block, x)

    # Tensors within transforms are not numbered alike even without a cache.
    traces = [run(program, cache=cache)[0] for cache in (False, True, True, True)]
    found = [[(c.op, c.module_call, c.position) for c in t.ops] for t in traces]
    assert found == found[:1] * 4
    assert {trace.program.structures for trace in traces[1:]} == {
        traces[0].program.structures
    }


def script_layers():
    x, block = torch.ones(2, 4), Block(nn.Linear(4, 4), nn.GELU())
    call_inside(block, x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = torch.jit.trace(block, x).code
        code += torch.jit.script(nn.Sequential(nn.Linear(4, 4))).code
    call_inside(block, x)
    return code


def check_out():
    block = Block(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    for x in (torch.ones(2, 4), torch.ones(2, 4, requires_grad=True)):
        call_inside(block, x)
        for is_reentrant in (True, False):
            y = checkpoint(block, x, use_reentrant=is_reentrant)
            if x.requires_grad:
                y.sum().backward()
    call_inside(nn.DataParallel(block), torch.ones(2, 4))


def export_layers():
    block, x = Block(nn.Linear(4, 4), nn.GELU()), torch.ones(2, 4)
    call_inside(block, x)
    with torch.no_grad():
        exported = torch.export.export(block, (x,))
    call_inside(block, x)
    return [node.name for node in exported.graph.nodes]


def compile_layers():
    block, x = Block(nn.Linear(4, 4), nn.GELU()), torch.ones(2, 4)
    for _ in range(2):
        call_inside(torch.compile(block, backend="eager"), x)
        call_inside(block, x)


@pytest.mark.parametrize(
    "program", [trace_layers, script_layers, check_out, export_layers, compile_layers]
)
def test_a_layer_that_is_traced_is_recorded_as_it_is(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_recorded_alike(program)
