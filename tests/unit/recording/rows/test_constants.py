"""Constants of a recording: values that came from outside."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import embedding, pad

from meta_magic import ValueLimits, materialize, record

both = pytest.mark.parametrize("cache", [True, False])


def test_python_values_are_one_constant_each():
    with record() as trace:
        kept = [torch.tensor([1.0, 2.0]), torch.tensor(3), torch.ones(2)]
    contents = [
        np.frombuffer(c.data, np.uint8).tobytes() for c in trace.program.constants
    ]
    assert contents == [
        np.array([1, 2], np.float32).tobytes(),
        np.array(3, np.int64).tobytes(),
    ]
    assert len(kept) == 3


@both
def test_values_are_kept_although_addresses_come_again(cache):
    with record(cache=cache):
        module = nn.Module()
        module.kept = []
        for number in range(50):
            torch.ones(1).add_(torch.tensor([1.0]))
            module.kept.append(torch.tensor([float(number)]) * 2)
    materialize(module)
    assert [tensor.item() for tensor in module.kept] == list(range(0, 100, 2))


# Between which values integers lie, as far as that is known without a replay


NO_REPLAY = ValueLimits(nbytes=0, flops=0)


def drawn(*shape):
    return torch.randn(shape)


def numbers(low, high):
    return torch.randint(low, high, (40,))


MAXIMA = {
    "randint": (lambda: numbers(0, 9), 8),
    "randperm": (lambda: torch.randperm(6), 5),
    "arange": (lambda: torch.arange(9, 0, -3), 9),
    "a view": (lambda: torch.arange(10)[2:5, None], 9),
    "full": (lambda: torch.full((3,), 7), 7),
    "ones": (lambda: torch.ones(3, dtype=torch.long), 1),
    "truths": (lambda: drawn(9).gt(0).long(), 1),
    "argmax along a dimension": (lambda: drawn(9, 4).argmax(1), 3),
    "argmin of all": (lambda: drawn(9, 4).argmin(), 35),
    "argsort": (lambda: drawn(9, 4).argsort(0), 8),
    "sort": (lambda: numbers(0, 6).sort().values, 5),
    "positions of sort": (lambda: drawn(7).sort(stable=True).indices, 6),
    "topk": (lambda: drawn(3, 50).topk(5).indices, 49),
    "max along a dimension": (lambda: drawn(3, 5, 2).max(1).indices, 4),
    "the largest": (lambda: numbers(2, 9).max(), 8),
    "multinomial": (lambda: torch.tensor([0.2] * 5).multinomial(2), 4),
    "a constant": (lambda: torch.tensor([3, 5]), 5),
    "parts of a constant": (lambda: torch.tensor([3, 5])[numbers(0, 2)], 5),
    "shifted classes": (lambda: pad(torch.arange(9), (0, 1), value=3)[1:], 8),
    "both": (lambda: torch.cat([numbers(0, 4), torch.tensor([9])]).flip(0), 9),
    "either": (lambda: torch.where(drawn(40) > 0, numbers(0, 4), 6), 6),
}


def count_notes(make, n_rows):
    """Return how many notes there are on a call that could not be checked."""
    with record(as_device="cpu", limits=NO_REPLAY, check_values=True) as trace:
        embedding(make(), torch.randn(n_rows, 2))
    return len([note for note in trace.notes if note.kind == "unchecked"])


@pytest.mark.parametrize("name", MAXIMA)
def test_values_lie_within_their_bounds_and_what_fits_needs_no_replay(name):
    make, highest = MAXIMA[name]
    assert count_notes(make, highest + 1) == 0
    for _ in range(20):
        made = make()
        assert made.min() >= 0
        assert made.max() <= highest


@pytest.mark.parametrize("name", [name for name in MAXIMA if name != "a constant"])
def test_what_may_not_fit_needs_one(name):
    make, highest = MAXIMA[name]
    assert count_notes(make, highest) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randint(0, 200, (9,)).to(torch.uint8).long(),
        lambda: torch.zeros(4, dtype=torch.long).index_fill_(0, torch.tensor(0), 0),
        lambda: torch.zeros(4, dtype=torch.int32).view(torch.int64),
        lambda: torch.arange(4) + 0,
    ],
)
def test_what_is_written_or_computed_needs_a_replay(make):
    assert count_notes(make, 199) == 1
