"""Addresses of tensors on meta: they say who shares memory, as on the CPU."""

import copy
import ctypes
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, record


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.last = nn.Linear(5, 5)


def count_addresses():
    """Return how many addresses the parameters of a module have."""
    model = Whole()
    named = [p.data_ptr() for p in model.parameters(recurse=True)]
    return len(named), len({*named, model.head.weight.data_ptr()})


def compare_parts():
    """Return how the addresses of one storage are to each other."""
    x = torch.randn(4, 5)
    complex_ = torch.randn(3, dtype=torch.cfloat)
    ways = (
        x.untyped_storage().data_ptr(),
        x.storage().data_ptr(),
        x._typed_storage()._data_ptr(),
        x.detach().data_ptr(),
        x.t().data_ptr(),
        nn.Parameter(x).data_ptr(),
        x.view(-1)[0].data_ptr(),
    )
    return (
        {x.data_ptr() - other for other in ways},
        x[1:, 2].data_ptr() - x.data_ptr(),
        complex_.imag.data_ptr() - complex_.real.data_ptr(),
        x.clone().data_ptr() == x.data_ptr(),
        copy.deepcopy(x).data_ptr() == x.data_ptr(),
    )


def find_edges():
    """Return the addresses of tensors without elements, and where others begin."""
    x = torch.randn(3)
    empty = torch.empty(0)
    return (
        empty.data_ptr(),
        empty.untyped_storage().data_ptr(),
        x[1:1].data_ptr(),
        x.data_ptr() % 64,
        torch.empty(7, dtype=torch.int8).data_ptr() % 64,
    )


def move_storages():
    """Return whether tensors are elsewhere once they have other memory."""
    x, y = torch.ones(3), torch.ones(3)
    first = x.data_ptr()
    x.add_(1)
    found = [x.data_ptr() == first]
    x.resize_(1000)
    found.append(x.data_ptr() == first)
    y.data = x
    found.append(y.data_ptr() == x.data_ptr())
    y.untyped_storage().resize_(0)
    return [*found, y.untyped_storage().data_ptr()]


def compare_sets():
    """Return which tensors are set to the same elements."""
    x = torch.eye(2)
    others = (x.detach(), x.clone(), x.t(), x[:1], x.view(2, 2), torch.empty(0))
    return [x.is_set_to(other) for other in others], x.t().is_set_to(x.mT)


def share_with_numpy():
    """Return whether arrays and tensors are at one address."""
    array = np.ones(3, np.float32)
    adopted = torch.from_numpy(array)
    x = torch.zeros(3)
    given = x.numpy()
    x.add_(1)
    return (
        adopted.data_ptr() == array.ctypes.data,
        adopted[1:].data_ptr() - array.ctypes.data,
        adopted.untyped_storage().data_ptr() == array.ctypes.data,
        x.data_ptr() == given.ctypes.data,
        ctypes.string_at(x.data_ptr(), 12) == given.tobytes(),
    )


def find_under_transforms():
    """Return which tensors of torch.func and of autograd have an address."""
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    mapped = torch.vmap(lambda row: row * 2)(torch.ones(2, 3))
    return x.grad.data_ptr() == x.data_ptr(), bool(mapped.data_ptr())


@pytest.mark.parametrize(
    "program",
    [
        count_addresses,
        compare_parts,
        find_edges,
        move_storages,
        compare_sets,
        share_with_numpy,
        find_under_transforms,
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_addresses_say_what_they_say_on_the_cpu(program):
    with record():
        recorded = program()
    assert recorded == program()


def test_no_address_is_given_twice_and_no_two_tensors_overlap():
    with record():
        kept = [torch.empty(20) for _ in range(5)]
        starts = [torch.empty(20).data_ptr() for _ in range(50)]
        starts += [tensor.data_ptr() for tensor in kept]
    with record():
        assert [tensor.data_ptr() for tensor in kept] == starts[-5:]
        starts.append(torch.empty(20).data_ptr())
    starts.sort()
    assert all(b - a >= 80 for a, b in pairwise(starts))


READERS = {
    "string_at": lambda address: ctypes.string_at(address, 4),
    "memmove": lambda address: ctypes.memmove(ctypes.c_int(), address, 4),
    "cast": lambda address: ctypes.cast(address, ctypes.POINTER(ctypes.c_ubyte)),
    "pointer": lambda address: ctypes.cast(ctypes.c_void_p(address), ctypes.c_char_p),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_ctypes_does_not_read_at_an_address_that_is_made_up(read):
    with record():
        x = torch.ones(3)
        with pytest.raises(MissingValueError, match=r"x\.numpy"):
            read(x.data_ptr())
