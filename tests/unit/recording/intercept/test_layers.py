"""The operator cache changes no record of layers, however they are called."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.unit.recording.intercept.layer_programs import (
    Block,
    Calling,
    assert_recorded_alike,
    call_inside,
    in_thread,
    run,
    trace_layers,
)


def tie_weights():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight, second.bias = first.weight, nn.Parameter(first.weight[0])
    call_inside(Block(first, second), torch.ones(3, 4))
    call_inside(first, first.weight.detach())


def share_with_input():
    layer = nn.Linear(4, 4)
    for x in (layer.weight, layer.weight.detach(), layer.weight.data[1:]):
        call_inside(layer, x)
        call_inside(layer, x)


def name_by_keyword():
    layer = nn.Linear(4, 4)
    for _ in range(3):
        call_inside(lambda x: layer(input=x), torch.ones(2, 4))


def take_odd_tensors():
    relu, norm, dropout = nn.ReLU(), nn.LayerNorm(4), nn.Dropout()
    z = torch.ones(3, 4, dtype=torch.complex64)
    odd = [torch.ones(0, 4), torch.ones(4).expand(3, 4), torch.ones(3, 8)[:, ::2]]
    odd += [z.conj().imag, torch.ones(3, 4, dtype=torch.half), torch.ones(4)]
    for x in odd * 2:
        call_inside(lambda x: dropout(norm(relu(x).float())), x)
    linear = nn.Linear(4, 4, dtype=torch.complex64)
    for x in (z, z.conj(), z) * 2:
        call_inside(lambda x: dropout(linear(x)), x)


def take_sparse_tensors():
    x = torch.eye(4).to_sparse()
    for _ in range(2):
        call_inside(nn.Linear(4, 4), x)
        call_inside(nn.ReLU(), x)


def take_quantized_tensors():
    x = torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 0, torch.quint8)
    for _ in range(2):
        call_inside(nn.ReLU(), x)


def move_layers():
    block = Block(nn.Linear(4, 4), nn.Dropout(), nn.LayerNorm(4))
    for device in ("cpu", "cuda", "cuda:1", "cpu"):
        call_inside(block.to(device), torch.ones(2, 4, device=device))


def change_dtypes():
    block = Block(nn.Linear(4, 4), nn.GELU())
    try:
        for dtype in (torch.float, torch.double, torch.float):
            torch.set_default_dtype(dtype)
            call_inside(block, torch.ones(2, 4, dtype=torch.float))
            call_inside(nn.Linear(4, 4), torch.ones(2, 4))
    finally:
        torch.set_default_dtype(torch.float)
    for dtype in (torch.half, torch.float):
        call_inside(block.to(dtype), torch.ones(2, 4, dtype=dtype))


def change_settings():
    drop, norm, gelu = nn.Dropout(0.5), nn.LayerNorm(4), nn.GELU()
    for p, training in ((0.5, True), (0.1, True), (0.1, False), (0.0, True)) * 2:
        drop.p, norm.eps = p, p + 1e-5
        gelu.approximate = "tanh" if training else "none"
        call_inside(lambda x: gelu(norm(drop(x))), torch.ones(2, 4))
        drop.train(training)


def copy_layers():
    block = Block(nn.Linear(4, 4), nn.Dropout())
    call_inside(block, torch.ones(2, 4))
    for again in (copy.deepcopy(block), copy.copy(block)):
        call_inside(again, torch.ones(2, 4))
    block = pickle.loads(pickle.dumps(nn.Sequential(nn.GELU(), nn.ReLU())))
    call_inside(block, torch.ones(2, 4))
    torch.save(block, io.BytesIO())


def share_with_arrays():
    array = np.ones((3, 4), dtype=np.float32)
    x, block = torch.from_numpy(array), Block(nn.ReLU(), nn.Linear(4, 4))
    for value in range(3):
        array[0] = value
        call_inside(block, x)
        call_inside(nn.ReLU(), x[1:])
    given = torch.ones(4)
    given.numpy()[1] = 2
    call_inside(block, given)


def fill_caches_late():
    layer, kept = nn.Linear(4, 4), []
    for _ in range(3):
        x = torch.ones(2, 4)
        kept = [call_inside(lambda x: layer(layer(x)), x), *kept[:1]]
        x = x + 1
        call_inside(lambda x: functional.relu(layer(x)), x.requires_grad_())


def build_within_calls():
    def build(x):
        return nn.Linear(4, 4)(nn.ReLU()(x))

    for _ in range(3):
        call_inside(build, torch.ones(2, 4))


def call_in_thread():
    layer, met = nn.Linear(4, 4), []
    block = Calling(lambda x: in_thread(lambda: met.append(layer(x))), layer)
    for _ in range(2):
        call_inside(layer, torch.ones(2, 4))
        with torch.no_grad():
            block(torch.ones(2, 4, device="meta"))
    return [x.shape for x in met]


def become_linear():
    lazy = nn.LazyLinear(4)
    for _ in range(3):
        call_inside(lazy, torch.ones(2, 4))


def look_up_unknown():
    """Look up indices that are known, and others that nobody knows."""
    layer, block = nn.Embedding(9, 4, device="cpu"), nn.Embedding(9, 4)
    at = torch.randint(9, (2, 4))
    for values in (at, at + 0, torch.arange(8).view(2, 4), torch.arange(8).view(2, 4)):
        call_inside(lambda x: (block(x), layer(x)), values)
        call_inside(block, values.int())


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


PROGRAMS = (
    look_up_unknown,
    tie_weights,
    share_with_input,
    name_by_keyword,
    take_odd_tensors,
    take_sparse_tensors,
    take_quantized_tensors,
    move_layers,
    change_dtypes,
    change_settings,
    copy_layers,
    share_with_arrays,
    fill_caches_late,
    build_within_calls,
    call_in_thread,
    become_linear,
    trace_layers,
    script_layers,
    check_out,
    export_layers,
    compile_layers,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_layers_has_one_record(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_recorded_alike(program)
