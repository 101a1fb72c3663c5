"""Arrays and tensors that share memory: each follows what is written to the other."""

import copy
import ctypes
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import (
    MissingValueError,
    ValueLimits,
    materialize,
    record,
)
from tests.unit.eager import assert_refused_alike, assert_same
from tests.unit.recording.intercept.data_of_cells import notes_of

LARGE = 2**15
"""Numbers of an array that is not looked at before each operator."""


def write_tensor():
    x = torch.ones(3)
    array = x.numpy()
    x += 1
    return array.tolist()


def write_array():
    x = torch.ones(3)
    array = x.numpy()
    array += 1
    y = x * 2
    array[0] = 7
    return x.tolist(), y.tolist()


def write_array_and_print():
    x = torch.ones(3)
    x.numpy()[1] = 5
    return str(x).partition(", device")[0].rstrip(")"), f"{x[1]:.1f}"


def write_views():
    x = torch.arange(6.0).reshape(2, 3)
    column, array = x.t()[1].numpy(), x.numpy()
    column[0] = 9
    x[1].mul_(2)
    return x.tolist(), array.tolist(), column.tolist(), column.strides


def ask_twice():
    x = torch.ones(3)
    first, second = x.numpy(), x.numpy()
    first[0] = 4
    return second.tolist()


def train():
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(layer.parameters())
    weights = [layer.weight.detach().numpy()]
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        weights.append(layer.weight.data.numpy())
    return [weight.tolist() for weight in weights]


def adopt(function):
    array = np.ones(3, dtype=np.float32)
    x = function(array)
    array += 1
    y = x * 2
    x[1] = 8
    return array.tolist(), x.tolist(), y.tolist()


def adopt_a_view():
    array = np.arange(6, dtype=np.int64)
    x = torch.from_numpy(array[::2])
    array *= 2
    return x.tolist()


def hand_on():
    x = torch.ones(3)
    y = torch.from_numpy(x.numpy())
    y += 1
    z = x * 3
    x += 1
    return y.tolist(), z.tolist()


def write_the_first_of_many():
    tensors = [torch.ones(3) for _ in range(99)]
    arrays = [x.numpy() for x in tensors]
    arrays[0][1] = 5
    return torch.stack(tensors).sum().item(), (tensors[0] * 2).tolist()


def write_by_another_dtype():
    array = np.ones(3, dtype=np.float32)
    x, bits = torch.from_numpy(array), torch.from_numpy(array.view(np.int32))
    x += 1
    found = bits.tolist()
    bits.zero_()
    return found, (x + 1).tolist()


def copy_instead():
    x, array = torch.ones(3), np.ones(3, dtype=np.float32)
    there = [np.array(x.tolist()), x.clone().numpy(), np.array(array)]
    tensors = [torch.tensor(array), torch.asarray(array, copy=True)]
    x += 1
    array += 1
    return [value.tolist() for value in (*there, *tensors)]


CELLS = {
    "a tensor is written": write_tensor,
    "an array is written": write_array,
    "an array is written, and the tensor printed": write_array_and_print,
    "views": write_views,
    "one tensor asked for twice": ask_twice,
    "weights in training": train,
    "from_numpy": lambda: adopt(torch.from_numpy),
    "as_tensor": lambda: adopt(torch.as_tensor),
    "asarray": lambda: adopt(torch.asarray),
    "frombuffer": lambda: adopt(lambda a: torch.frombuffer(a, dtype=torch.float32)),
    "from_dlpack": lambda: adopt(torch.from_dlpack),
    "dlpack": lambda: np.from_dlpack(torch.ones(3)).tolist(),
    "a view of an array": adopt_a_view,
    "an array of one tensor for another": hand_on,
    "the first of many": write_the_first_of_many,
    "another dtype": write_by_another_dtype,
    "copies": copy_instead,
}


@pytest.mark.parametrize("name", CELLS)
def test_an_array_shares_the_memory_of_its_tensor_as_on_the_cpu(name):
    wanted = CELLS[name]()
    with record() as trace:
        met = CELLS[name]()
    assert met == wanted
    assert "array" not in notes_of(trace)


def test_what_is_written_to_an_array_is_written_to_what_is_made_of_its_tensor():
    with record():
        layer = nn.Linear(2, 1)
        array = layer.weight.detach().numpy()
        array[:] = 3
        with torch.no_grad():
            layer.bias.fill_(layer.weight.sum())
        array[0, 0] = 4
    materialize(layer, "cpu")
    assert (layer.weight.tolist(), layer.bias.tolist()) == ([[4, 3]], [6])


def test_an_array_follows_into_later_cells():
    with record():
        x = torch.ones(3)
        array = x.numpy()
    array += 1
    with record():
        doubled = (x * 2).tolist()
        x += 1
    assert (doubled, array.tolist()) == ([4, 4, 4], [3, 3, 3])


def test_a_large_array_that_was_written_is_said_and_counts_from_the_next_cell_on():
    with record() as trace:
        x = torch.ones(LARGE)
        array = x.numpy()
        array[0] = 3
        seen = x[0].item()
    with record():
        later = x[0].item()
    assert (seen, later) == (1, 3)
    assert "an array of 131,072 bytes" in notes_of(trace)["array"].text


def test_a_large_array_follows_its_tensor():
    with record():
        x = torch.ones(LARGE)
        array = x.numpy()
        x += 1
        assert array[5] == 2


def test_an_array_that_cannot_follow_is_said():
    with record(limits=ValueLimits(nbytes=100)) as trace:
        x = torch.ones(3)
        array = x.numpy()
        x += torch.ones(64, 3).sum(0)
    assert array.tolist() == [1, 1, 1]
    assert "is not updated from here on" in notes_of(trace)["array"].text


def test_nothing_is_kept_of_arrays_and_tensors_that_are_gone():
    with record() as trace:
        x = torch.ones(3)
        array = x.numpy()
        del x
        array += 1
        y = torch.from_numpy(np.ones(3))
        y += 1
    assert [op.op for op in trace.ops].count("aten.copy_.default") == 0


def test_a_tensor_of_a_capsule_is_not_taken_for_a_dead_one_at_its_address():
    with record() as trace:
        x = torch.rand(3)
        views = [x.detach() for _ in range(30)]
        addresses = {id(view) for view in views}
        capsules = [torch.utils.dlpack.to_dlpack(view) for view in views]
        del views
        made = [*map(torch.utils.dlpack.from_dlpack, capsules)]
        for alias in made:
            alias.clone()
    assert addresses & {*map(id, made)}, "no address was used again: nothing is shown"
    dead = {op.outputs[0].tensor_id for op in trace.ops if "detach" in op.op}
    read = {op.inputs[0].tensor_id for op in trace.ops if "clone" in op.op}
    assert not dead & read


def test_a_buffer_that_torch_allocated_is_filled_through_its_array():
    data = np.arange(6, dtype=np.uint16).tobytes()
    with record():
        tokens = torch.empty(6, dtype=torch.uint16)
        assert BytesIO(data).readinto(tokens.numpy()) == 12
        assert tokens[2:].long().tolist() == [2, 3, 4, 5]


def test_an_array_of_memory_that_nothing_fills_gives_no_values():
    with record():
        tokens = torch.empty(6)
        tokens.numpy()
        with pytest.raises(MissingValueError, match="nothing was written"):
            tokens.sum().item()
        with pytest.raises(MissingValueError, match="nothing was written"):
            (tokens + 1).numpy()


# Addresses of tensors on meta: they say who shares memory, as on the CPU


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


# Storages of meta tensors that are read: what they hold for real, or an error


pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def turned():
    return torch.arange(6.0).view(2, 3).t()


READS = {
    "a list of numbers": lambda: list(turned().storage()),
    "as a list": lambda: turned().storage().tolist(),
    "a number": lambda: turned().storage()[-2],
    "bytes": lambda: turned().untyped_storage().tolist(),
    "a byte": lambda: turned().untyped_storage()[6],
    "some bytes": lambda: list(turned().untyped_storage()[4:8]),
    "a wide one of a view": lambda: turned()[:, 1].storage().tolist(),
    "one of halves": lambda: turned().bfloat16().storage().tolist(),
    "none": lambda: torch.ones(0).storage().tolist(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_storage_is_read_as_on_the_cpu(read):
    assert_same(read)


def test_a_storage_is_read_as_it_is_by_then():
    with record():
        x = torch.zeros(2)
        stored = x.storage()
        x[1] = 5.0
        assert list(stored) == [0.0, 5.0]


@pytest.mark.parametrize("index", [6, -7, "a", slice(2)])
def test_an_index_is_refused_as_on_the_cpu(index):
    assert_refused_alike(lambda: turned().storage()[index])


def test_a_storage_that_nobody_wrote_is_refused_with_what_made_it():
    with record():
        stored = torch.empty(3).storage()
        with pytest.raises(MissingValueError, match="12 bytes on meta") as error:
            list(stored)
    assert "aten.empty.memory_format in line" in str(error.value)
