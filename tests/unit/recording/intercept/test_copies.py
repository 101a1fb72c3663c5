"""Copies by Python's ``copy`` and ``pickle``: those that the CPU makes."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal, assert_same, build_twice
from tests.unit.materializing.modules import holding


class Log(TorchDispatchMode):
    """Notes which operators run."""

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A class of a user's own."""


def copy_base_first():
    a = torch.arange(4.0)
    return copy.deepcopy(holding(a=a, b=a[:2]))


def copy_view_first():
    a = torch.arange(4.0)
    return copy.deepcopy(holding(b=a[1:3], a=a))


def copy_transposed():
    a = torch.arange(6.0).view(2, 3)
    return copy.deepcopy(holding(a=a.t(), b=a))


def copy_other_dtype():
    a = torch.arange(4, dtype=torch.int32)
    return copy.deepcopy(holding(a=a, b=a.view(torch.int16)[2:4]))


def copy_expanded():
    a = torch.arange(3.0)
    return copy.deepcopy(holding(a=a.expand(2, 3), b=a))


def copy_same():
    a = torch.arange(3.0)
    return copy.deepcopy(holding(a=a, b=a))


def copy_list():
    a = torch.arange(4.0)
    b, c = copy.deepcopy([a, a[2:]])
    return holding(a=b, b=c)


COPIES = {
    "base first": copy_base_first,
    "view first": copy_view_first,
    "transposed": copy_transposed,
    "of another dtype": copy_other_dtype,
    "expanded": copy_expanded,
    "the same": copy_same,
    "in a list": copy_list,
}


def offsets_of(module):
    return {name: b.storage_offset() for name, b in module.named_buffers()}


@pytest.mark.parametrize("name", COPIES)
def test_what_a_deep_copy_shares_is_shared_by_its_own_tensors_alone(name):
    def build():
        module = COPIES[name]()
        copied = copy.deepcopy(module)
        module.a.zero_() if name != "expanded" else module.b.zero_()
        copied.b.view(-1)[0] = 7  # seen through the other one
        return copied

    real, made, _, _ = build_twice(build)
    assert offsets_of(made) == offsets_of(real)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_deep_copy_takes_gradient_and_attributes_along():
    def build():
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        x.label = "x"
        return copy.deepcopy(x)

    real = build()
    with record():
        made = build()
        values = made.tolist(), made.grad.tolist()
    assert (made.label, made.requires_grad, made.is_leaf) == ("x", True, True)
    assert values == (real.tolist(), real.grad.tolist())


def test_what_no_leaf_is_refuses_a_deep_copy_as_on_the_cpu():
    with record(), pytest.raises(RuntimeError, match="created explicitly by the user"):
        copy.deepcopy(torch.ones(2, requires_grad=True) * 2)


@pytest.mark.parametrize("kind", [lambda x: x, nn.Parameter])
def test_a_flat_copy_lies_on_the_storage_of_the_tensor(kind):
    def build():
        x = kind(torch.arange(3.0))
        y = copy.copy(x)
        with torch.no_grad():
            x.add_(1)
        return holding(y=y)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


WAYS = {
    "flat": copy.copy,
    "deep": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
COPIED = {
    "tensor": lambda x: x,
    "view": lambda x: x[1:],
    "parameter": nn.Parameter,
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_counts_its_writes_and_is_made_by_operators_as_on_the_cpu(way, kind):
    with Log() as log:
        real = WAYS[way](COPIED[kind](torch.ones(3).add_(1)))
    with record() as trace:
        made = WAYS[way](COPIED[kind](torch.ones(3).add_(1)))
    assert made._version == real._version
    if kind in {"tensor", "view", "parameter", "empty"}:
        assert [op.op for op in trace.ops] == log.names


@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("way", ["flat", "deep"])
def test_a_copy_of_what_an_earlier_recording_made_has_its_values(way, kind):
    def build():
        with record():
            x = COPIED[kind](torch.arange(3.0))
        with record():
            return holding(x=x, y=WAYS[way](x))

    made = build()
    materialize(made)
    real = COPIED[kind](torch.arange(3.0))
    assert_bit_equal(made, holding(x=real, y=WAYS[way](real)))


def pickle_and_load():
    """Return what pickle makes of tensors, views, modules and gradients."""
    torch.manual_seed(0)
    x = torch.rand(3, 2)
    tied, view = pickle.loads(pickle.dumps((x.t(), x[1:])))
    view.add_(1)
    layer = pickle.loads(pickle.dumps(nn.Linear(2, 2)))
    layer(tied.t()).sum().backward()
    named = pickle.loads(pickle.dumps(x.as_subclass(Named)))
    return view.tolist(), layer.weight.grad.tolist(), type(named), named.tolist()


def test_what_is_unpickled_has_the_values_that_were_pickled():
    assert_same(pickle_and_load)


def test_what_was_pickled_in_a_cell_has_its_values_outside():
    with record():
        pickled = pickle.dumps(torch.arange(3.0)[1:])
    assert pickle.loads(pickled).tolist() == [1, 2]
