"""What values may be, beside what the CPU takes of them."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record
from tests.unit.eager import assert_same, outcome


def mask(n):
    return torch.tensor([True] * n + [False] * (4 - n))


def write(index, values):
    torch.zeros(4, 2)[index] = values


CALLS = {
    "where the first bag begins": lambda i: F.embedding_bag(
        torch.tensor([0, 1, 2]), torch.ones(5, 3), torch.tensor([i, 3])
    ),
    "rows that a mask chooses": lambda i: write(mask(i), torch.ones(2, 2)),
    "elements that a mask chooses": lambda i: write(
        torch.tensor([[i > 0, i > 1], [False, i > 2]] * 2), torch.ones(4)
    ),
    "columns that a mask chooses": lambda i: write(
        (slice(None), torch.tensor([i > 0, i > 1])), torch.ones(4, 2)
    ),
    "a value for all rows": lambda i: write(mask(i), torch.ones(1, 2)),
    "a rate": lambda i: torch.poisson(torch.tensor([1.0, i - 1])),
    "a chance": lambda i: torch.bernoulli(torch.tensor([1.0, i - 1])),
    "a chance of a write": lambda i: torch.ones(2).bernoulli_(torch.tensor([0.0, i])),
    "a deviation": lambda i: torch.normal(0.0, torch.tensor([1.0, i - 1])),
    "what was predicted": lambda i: F.binary_cross_entropy(
        torch.tensor([0.5, i / 2]), torch.ones(2)
    ),
    "what was to be predicted": lambda i: F.binary_cross_entropy(
        torch.ones(2), torch.tensor([0.0, i])
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_value_is_refused_where_the_cpu_refuses_it(name):
    for value in range(4):
        assert_same(lambda at=value: outcome(CALLS[name], at), as_device="cpu")


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (CALLS["where the first bag begins"], "offsets[0] is 3; allowed is 0"),
        (CALLS["rows that a mask chooses"], "3 of indices are true; 2 may be"),
        (CALLS["what was to be predicted"], "target[1] is 3.0; allowed are 0 to 1"),
    ],
)
def test_the_error_says_what_is_allowed(call, note):
    with record(as_device="cpu"), pytest.raises(RuntimeError) as error:
        call(3)
    assert error.value.__notes__ == [f"meta_magic: {note}"]


def test_a_value_that_was_written_since_is_not_what_it_was():
    with record(as_device="cpu"):
        drawn = torch.bernoulli(torch.tensor([2.0, 0.0]).mul_(0.25))
        assert drawn[1] == 0


def test_a_mask_that_was_computed_is_evaluated_where_all_is_to_be_checked():
    with record(as_device="cpu", check_values=True), pytest.raises(RuntimeError):
        write(torch.arange(4) > 0, torch.ones(2, 2))
