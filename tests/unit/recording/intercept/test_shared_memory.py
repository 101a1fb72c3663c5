"""Arrays and tensors that share memory: each follows what is written to the other."""

from io import BytesIO

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, ValueLimits, materialize, record
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
