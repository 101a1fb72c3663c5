"""Statements of torch's documentation that nobody else records, as on the CPU."""

import contextlib
import operator
import warnings

import numpy as np
import pytest
import torch
from torch import from_numpy, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.dlpack import from_dlpack, to_dlpack

from meta_magic import record


class Named(torch.Tensor):
    """A class of a user's own."""


def of_leaf(make):
    tensor = make(torch.ones(3, requires_grad=True))
    (tensor * 2).sum().backward()
    return describe(tensor)


def describe(tensor):
    facts = tensor.requires_grad, tensor.is_leaf, tensor._version
    return type(tensor), type(tensor.grad_fn), *facts, tensor.tolist()


SUBCLASSES = {
    "of a leaf": lambda: of_leaf(Named),
    "of a list": lambda: describe(Named([1.0, 2.0])),
    "of sizes": lambda: describe(Named(3).fill_(1)),
    "of integers": lambda: describe(Named(torch.arange(3))),
    "of its own class": lambda: describe(Named(Named(torch.ones(2)))),
    "as": lambda: of_leaf(operator.methodcaller("as_subclass", Named)),
    "made": lambda: describe(torch.Tensor._make_subclass(Named, torch.ones(2), True)),
    "parameter": lambda: describe(nn.Parameter(Named(torch.ones(2)))),
    "of a parameter": lambda: describe(Named(nn.Parameter(torch.ones(2)))),
    "legacy": lambda: describe(torch.FloatTensor(torch.ones(2))),
}


def write_by_dlpack(pack):
    x = torch.ones(3)
    y = pack(x)
    y.add_(1)
    x.mul_(2)
    return x.tolist(), y.tolist(), x._version, y._version


def write_array(share):
    array = np.arange(3.0)
    share(array).add_(1)
    return array.tolist()


def refuse_dlpack(tensor):
    with pytest.raises(BufferError) as caught:
        torch.from_dlpack(tensor)
    return str(caught.value)


MEMORY = {
    "from_dlpack": lambda: write_by_dlpack(torch.from_dlpack),
    "capsule": lambda: write_by_dlpack(
        lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    ),
    "capsule imported by name": lambda: write_by_dlpack(
        lambda x: from_dlpack(to_dlpack(x))
    ),
    "array imported by name": lambda: write_array(from_numpy),
    "dlpack of a gradient": lambda: refuse_dlpack(torch.ones(2, requires_grad=True)),
    "dlpack of a conjugate": lambda: refuse_dlpack(torch.tensor([1j]).conj()),
    "imported by name": lambda: from_dlpack(torch.ones(2)).tolist(),
    "is_shared": lambda: [
        torch.ones(2).is_shared(),
        torch.ones(2).share_memory_()[1:].is_shared(),
        nn.Linear(2, 2).share_memory().weight.is_shared(),
    ],
}


def skip_init():
    layer = nn.utils.skip_init(nn.Linear, 2, 2)
    nn.init.ones_(layer.weight)
    return layer.weight._version, layer.weight.tolist()


def cast_in_inference_mode():
    with torch.inference_mode():
        layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.double()
    return layer.weight is weight, layer.weight.dtype


def view_as_its_own_dtype():
    outside = torch.ones(2)
    with torch.inference_mode():
        inside = torch.ones(2)
        views = [outside.view(torch.float32), inside.view(torch.float32)]
    views += [outside.view(torch.float32), inside.view(torch.float32)]
    return [view.is_inference() for view in views]


def draw_sobol():
    scrambled = torch.quasirandom.SobolEngine(3, scramble=True)
    drawn = [scrambled.draw(5), scrambled.fast_forward(3).draw(4, dtype=torch.double)]
    plain = torch.quasirandom.SobolEngine(2)
    points = [*drawn, plain.draw(3, out=torch.empty(0)), plain.sobolstate]
    return [(x.tolist(), x.dtype, x.stride()) for x in points], torch.rand(2).tolist()


def mask_blocks():
    mask = create_block_mask(lambda b, h, i, j: i >= j, 2, None, 6, 6, "cpu", 2)
    q = torch.randn(2, 3, 6, 4, device="cpu")
    attended = flex_attention(q, q, q, block_mask=mask).tolist()
    return mask.sparsity(), mask.kv_indices.tolist(), mask.to_dense().tolist(), attended


OTHERS = {
    "draw_sobol": draw_sobol,
    "mask_blocks": mask_blocks,
    "unravel_index": lambda: [
        t.tolist() for t in torch.unravel_index(torch.tensor([3, 4]), (2, 3))
    ],
    "skip_init": skip_init,
    "cast_in_inference_mode": cast_in_inference_mode,
    "view_as_its_own_dtype": view_as_its_own_dtype,
}


def jagged():
    rows = [torch.arange(6.0).view(2, 3), torch.ones(4, 3)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def rows_of(nested):
    return [row.tolist() for row in nested.unbind()]


def from_jagged():
    values, offsets = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 6])
    return rows_of(torch.nested.nested_tensor_from_jagged(values, offsets))


def narrowed():
    dense, starts = torch.arange(24.0).view(2, 4, 3), torch.tensor([0, 1])
    lengths = torch.tensor([2, 3])
    return rows_of(torch.nested.narrow(dense, 1, starts, lengths, layout=torch.jagged))


def trained():
    layer = nn.Linear(3, 2)
    layer(jagged()).values().pow(2).sum().backward()
    return layer.weight.grad.tolist()


JAGGED = {
    "unbind": lambda: rows_of(jagged()),
    "from_jagged": from_jagged,
    "narrow": narrowed,
    "linear": lambda: rows_of(nn.Linear(3, 2)(jagged())),
    "layer_norm": lambda: rows_of(nn.LayerNorm(3)(jagged() * 2)),
    "gradient": trained,
    "to_padded_tensor": lambda: jagged().to_padded_tensor(0.0).tolist(),
}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name)
        for programs in (SUBCLASSES, MEMORY, OTHERS, JAGGED)
        for name, program in programs.items()
    ],
)
def test_an_idiom_does_what_it_does_on_the_cpu(program):
    returned = []
    for block in (contextlib.nullcontext(), record(), record(cache=False)):
        torch.manual_seed(0)
        with block, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a prototype, and of what is old
            returned.append(program())
    assert returned[1:] == returned[:1] * 2


def test_a_capsule_of_a_real_tensor_is_a_real_one_outside():
    x = torch.ones(2)
    assert from_dlpack(to_dlpack(x)).data_ptr() == x.data_ptr()


def test_a_strided_nested_tensor_is_refused_with_the_way_out():
    rows = [torch.ones(2, 3), torch.ones(4, 3)]
    with record(), pytest.raises(NotImplementedError, match=r"layout=torch\.jagged"):
        torch.nested.nested_tensor([torch.ones(2, 3), *rows[1:]])
