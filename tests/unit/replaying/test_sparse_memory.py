"""A sparse tensor shares the memory of what it was made of, also in a replay."""

import pytest
import torch

from meta_magic import record
from tests.conformance.sparse_calls import edges, rows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

AT = [[0, 1, 2]]


def values_written():
    values = torch.randn(3)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values, (4,))
    values.mul_(2)
    return made.to_dense()


def values_filled():
    values = torch.randn(3)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values, (4,))
    values.zero_()
    values.copy_(torch.arange(3.0))
    return made.to_dense()


def sparse_written():
    values = torch.randn(3)
    torch.sparse_coo_tensor(torch.tensor(AT), values, (4,)).mul_(2)
    return values


def positions_written():
    at = torch.tensor(AT)
    made = torch.sparse_coo_tensor(at, torch.randn(3), (4,))
    at.add_(1)
    return made.to_dense()


def positions_written_before_they_are_sorted():
    at = torch.tensor([[2, 1, 0]])
    made = torch.sparse_coo_tensor(at, torch.randn(3), (4,))
    at[0, 0] = 1
    return made.coalesce().values()


def own_positions_written():
    made = edges().coalesce()
    made.indices().zero_()
    return made.to_dense()


def own_values_written():
    made = edges().coalesce()
    made.values()[2:].mul_(0.5)
    made.values()[0] = 7
    return made.to_dense()


def written_through_another():
    values, at = torch.randn(3), torch.tensor(AT)
    first = torch.sparse_coo_tensor(at, values, (4,))
    second = torch.sparse_coo_tensor(at.flip(1), values, (4,))
    first.to_dense().sum().item()
    first.mul_(2)
    return second.to_dense()


def values_are_a_view():
    values = torch.randn(6)
    made = torch.sparse_coo_tensor(torch.tensor(AT), values[::2], (4,))
    values.add_(1)
    made._values().mul_(3)
    return torch.cat([values, made.to_dense()])


def detached():
    made = edges()
    other = made.detach()
    made._values().mul_(2)
    return other.to_dense()


def compressed():
    made = rows()
    made.values().mul_(2)
    return made.to_dense()


BLOCKS = [
    *(values_written, values_filled, sparse_written, positions_written),
    *(positions_written_before_they_are_sorted, own_positions_written),
    *(own_values_written, written_through_another, values_are_a_view, detached),
    compressed,
]


@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_written_through_one_is_seen_through_the_other(block):
    torch.manual_seed(0)
    wanted = block().tolist()
    torch.manual_seed(0)
    with record():
        assert block().tolist() == wanted
