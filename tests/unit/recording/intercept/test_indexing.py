"""What is written at an index."""

from collections import deque
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch.utils.data import Subset

from meta_magic import record
from tests.unit.eager import Names, assert_same, assert_same_operators


@pytest.mark.parametrize(
    "index",
    [0, slice(1, 3), (slice(None), 0), ..., (None, 1), (1, 2), [0, 2], (1, [3])],
    ids=str,
)
@pytest.mark.parametrize("value", [7, 0.5, True, np.float64(2), np.int64(3)], ids=str)
def test_a_number_written_at_an_index_is_the_operator_of_the_cpu(index, value):
    def write():
        x = torch.zeros(4, 4)
        x[index] = value
        return x.sum().item()

    assert_same(write, as_device="cpu")
    assert_same_operators(write, skipped=["lift"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(
    "value",
    [np.float32(3), np.bool_(1), np.complex64(3), Fraction(1, 2), np.ones(1), 3j, 1e99],
    ids=repr,
)
def test_what_torch_cannot_write_at_an_index_is_refused_in_its_words(value, dtype):
    def write():
        x = torch.zeros(3, dtype=dtype)
        try:
            x[0] = value
        except (TypeError, RuntimeError, OverflowError) as error:
            return type(error), str(error)
        return x.tolist()

    assert_same(write, as_device="cpu")


class Position(NamedTuple):
    """An index that is a tuple of a class of its own."""

    row: object
    column: object


SCALARS = {
    "row": lambda x: x.__setitem__(0, torch.tensor(5.0)),
    "ellipsis": lambda x: x.__setitem__(..., torch.tensor(5.0)),
    "row at a position": lambda x: x.__setitem__(torch.tensor(1), torch.tensor(5.0)),
    "column at a position": lambda x: x.__setitem__(
        (slice(1, 3), torch.tensor(-1)), torch.tensor(5)
    ),
    "element at positions": lambda x: x.__setitem__(
        (torch.tensor(1), torch.tensor(2)), torch.tensor(5.0)
    ),
    "element": lambda x: x.__setitem__((0, 1), torch.tensor(5.0)),
    "mask": lambda x: x.__setitem__(x == 0, torch.tensor(5.0)),
    "values at two masks": lambda x: x.__setitem__(
        (torch.tensor([True, False, True]), torch.tensor([False, True, True])),
        torch.ones(2),
    ),
    "number at a mask": lambda x: x.__setitem__(x == 0, 5),
    "number at a tensor": lambda x: x.__setitem__(torch.tensor([0, 2]), 5),
    "number at a position": lambda x: x.__setitem__(torch.tensor(1), 5),
    "number at pairs": lambda x: x.__setitem__((torch.arange(3), torch.arange(3)), 5),
    "truth": lambda x: x.__setitem__(x[0, 0] == 0, torch.ones(1, 3, 3)),
    "truth that is read": lambda x: x.add_(x[x[0, 0] == 0][0]),
    "Python's truth": lambda x: x.add_(x[True][0] + x[False].sum()),
    "truth in a tuple": lambda x: x.add_(x[(x[0, 0] == 0,)][0]),
    "number at a truth": lambda x: x.__setitem__(x[0, 0] == 0, 5),
    "number at Python's truth": lambda x: x.__setitem__(True, 5),
    "number at a range": lambda x: x.__setitem__((range(2), [2, 1]), x.max()),
}
LISTS = {
    "truths": [True, False, True],
    "none true": [False] * 3,
    "positions and truths": [[True, False, True], [0, 1]],
    "rows and columns": [[0, 1], [1, 2]],
    "tuple": (0, (1, 2)),
    "truth among numbers": [0, True],
    "fraction": [1.5],
    "range and number": (range(3), 1),
    "ranges in a list": [range(2), range(1, 3)],
    "items one by one": deque([2, 0]),
    "sizes": torch.Size([2, 1]),
    "named": Position(range(2), 1),
    "range and array": (range(2), np.array([2, 1])),
}


@pytest.mark.parametrize("name", SCALARS)
def test_what_has_no_dimensions_is_written_by_the_operator_of_the_cpu(name):
    def write():
        x = torch.zeros(3, 3)
        SCALARS[name](x)
        return x.tolist()

    assert_same(write, as_device="cpu")
    skipped = "lift", "_local_scalar_dense", "_to_copy"  # of tolist
    assert_same_operators(write, skipped=skipped)


def test_a_gradient_flows_through_what_fills_a_row():
    def differentiate():
        weight = torch.tensor(3.0, requires_grad=True)
        x = torch.zeros(3, 4)
        x[0] = weight
        x.sum().backward()
        return weight.grad.item()

    assert_same(differentiate, as_device="cpu")


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", LISTS)
def test_a_list_at_an_index_takes_what_it_takes_for_real(name):
    def take():
        return torch.arange(9).view(3, 3)[LISTS[name]].tolist()

    assert_same(take)


OF_TENSORS = {
    "a long list": lambda x, i: x[[i[1], i[3]] * 20],
    "a short list in a tuple": lambda x, i: x[[i[1], i[3]],],
    "numbers and tensors": lambda x, i: x[[0, i[3].item(), i[2]] * 20],
    "a tensor as a list": lambda x, i: x[[*i] * 8],
    "a subset": lambda x, i: x[Subset(i, [1, 3] * 20)],
    "beside a slice": lambda x, i: x.view(10, 5)[:, [i[1], i[3]]],
    "written": lambda x, i: x.__setitem__([i[1], i[3]] * 20, 7),
}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_list_of_tensors_as_index_selects_what_it_does_on_the_cpu(name):
    def run():
        x, i = torch.arange(50.0), torch.arange(50)
        got = OF_TENSORS[name](x, i)
        return (x if got is None else got).tolist()

    assert_same(run, as_device="cpu")


def add_to_elements(table):
    for i, j in ((0, 1), (2, -1), (0, 1), (2, -1)):
        table[i, j] += 1
        table[i][j].mul_(table[0, 0])
        table[i] -= 0.5
    return table


def add_to_a_table():
    return add_to_elements(torch.ones(3, 4))


def add_to_a_view():
    return add_to_elements(torch.ones(4, 3).t())


def add_a_table_to_itself():
    table = torch.ones(3, 4)
    for _ in range(4):
        table.add_(table)
        table[0].add_(table[0])
    return table


def add_where_gradients_are_wanted():
    leaf = torch.ones(3, 4, requires_grad=True)
    add_to_elements(torch.ones(3, 4))
    return add_to_elements(leaf * 2)


def add_without_gradients():
    leaf = torch.ones(3, 4, requires_grad=True)
    add_to_elements(torch.ones(3, 4))
    with torch.no_grad():
        return add_to_elements(leaf)


def compute_of_elements():
    table, found = torch.rand(3, 4), []
    for i, j in ((0, 1), (2, -1), (0, 1), (2, -1)):
        chance = 1 - table[i, j].log().exp() * 0.5
        found.append(chance.sigmoid() * (table > chance) + table * table)
        found[-1].zero_().add_(found[0])
    return torch.stack(found)


def compute_in_another_default_dtype():
    whole = halves = torch.arange(3)
    try:
        for dtype in (*[torch.float32] * 3, torch.float64):
            torch.set_default_dtype(dtype)
            halves = whole / 2
    finally:
        torch.set_default_dtype(torch.float32)
    return halves


def descend_without_gradients():
    leaf = torch.ones(3, requires_grad=True)
    for _ in range(4):
        (leaf * leaf).sum().backward()
        with torch.no_grad():
            leaf -= 0.1 * leaf.grad
            leaf.grad.zero_()
    return leaf


def add_in_inference_mode():
    add_to_elements(torch.ones(3, 4))
    with torch.inference_mode():
        return add_to_elements(torch.ones(3, 4))


def add_in_a_transform():
    add_to_elements(torch.ones(3, 4))
    return torch.vmap(lambda rows: add_to_elements(rows.clone()))(torch.ones(2, 3, 4))


def add_to_a_tangent():
    add_to_elements(torch.ones(3, 4))
    with fwAD.dual_level():
        dual = fwAD.make_dual(torch.ones(3, 4), torch.full((3, 4), 2.0))
        return fwAD.unpack_dual(add_to_elements(dual * 1)).tangent


def add_in_a_hook():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: add_to_elements(torch.ones(3, 4))[0, :3] * grad)
    add_to_elements(torch.ones(3, 4))
    x.sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "make",
    [
        add_to_a_table,
        add_to_a_view,
        add_a_table_to_itself,
        add_where_gradients_are_wanted,
        add_without_gradients,
        compute_of_elements,
        compute_in_another_default_dtype,
        descend_without_gradients,
        add_in_inference_mode,
        add_in_a_transform,
        add_in_a_hook,
    ],
)
def test_calls_that_were_recorded_before_have_the_operators_of_the_cpu(make):
    torch.manual_seed(0)
    with Names() as real:
        wanted = make()
    torch.manual_seed(0)
    with record(as_device="cpu") as trace:
        met = make()
        assert (met.tolist(), met.dtype) == (wanted.tolist(), wanted.dtype)
    recorded = [op.op for op in trace.ops]
    assert recorded[: len(real.ops)] == real.ops  # then the values are read
    assert met.requires_grad == wanted.requires_grad
    if not wanted.is_inference():
        assert met._version == wanted._version


def test_calls_that_were_recorded_before_change_tangents():
    wanted = add_to_a_tangent()
    with record():
        assert add_to_a_tangent().tolist() == wanted.tolist()


def test_equal_views_of_several_tables_are_views_of_their_own_table():
    with record():
        views = [torch.ones(3, 4)[1, 2] for _ in range(3)]
        views[2] += 1
        assert [view.item() for view in views] == [1, 1, 2]
        assert [view._base.shape for view in views] == [(3, 4)] * 3


def test_what_a_transform_wraps_gets_no_number():
    with record() as trace:
        torch.vmap(torch.sin)(torch.ones(3))
    assert [op.outputs[0].storage_id for op in trace.ops] == [0, 1]
