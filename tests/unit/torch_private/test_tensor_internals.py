"""Unit tests of ``torch_private/tensor_internals.py``."""

import weakref

import pytest
import torch
from torch import nn

from meta_magic.torch_private.tensor_internals import make_guard


def make(shape=(2, 3), **options):
    return torch.ones(shape, device="meta", **options)


OTHERS = {
    "sizes": lambda: make((3, 2)),
    "strides": lambda: make((3, 2)).T,
    "dtype": lambda: make(dtype=torch.float64),
    "device": lambda: torch.ones(2, 3),
    "gradient": lambda: make(requires_grad=True),
    "parameter": lambda: nn.Parameter(make(), requires_grad=False),
    "layout": lambda: torch.sparse_coo_tensor(size=(2, 3), device="meta"),
}


def test_a_guard_lets_those_alike_pass():
    fits = make_guard([make(), make((4,))])
    assert fits(make(), make((4,)))
    assert fits(make((4, 3))[1:3], make((4,)))


@pytest.mark.parametrize("name", OTHERS)
def test_a_guard_tells_others(name):
    assert not make_guard([make()])(OTHERS[name]())


def test_a_guard_tells_a_lazy_conjugate_and_inference_mode():
    x = make(dtype=torch.complex64)
    fits = make_guard([x])
    assert fits(x)
    assert not fits(x.conj())
    with torch.inference_mode():
        assert not fits(x)


def test_a_guard_tells_what_a_transform_wraps():
    fits, said = make_guard([make((3,))]), []
    torch.func.vmap(lambda x: said.append(fits(x)) or x)(make())
    assert said == [False]


def test_a_guard_holds_no_tensor():
    x = make()
    fits, ref = make_guard([x]), weakref.ref(x)
    del x
    assert ref() is None
    assert fits(make())


def test_a_tensor_may_stand_twice():
    x, y = make(), make((4,))
    fits = make_guard([x, y, x])
    assert fits(x, y, x)
    assert not fits(y, y, y)
