"""Between which values numbers lie that a block makes: known, and not computed."""

import pytest
import torch
from torch.nn.functional import embedding, max_pool2d, max_pool3d

from meta_magic import ValueLimits, record

NONE = ValueLimits(nbytes=0, flops=0)


def drawn(*shape):
    return torch.randn(shape)


def numbers(low, high):
    return torch.randint(low, high, (40,))


KNOWN = {
    "argmax along a dimension": (lambda: drawn(9, 4).argmax(1), 0, 3),
    "argmin of all": (lambda: drawn(9, 4).argmin(), 0, 35),
    "argsort": (lambda: drawn(9, 4).argsort(0), 0, 8),
    "sort": (lambda: numbers(-3, 6).sort().values, -3, 5),
    "positions of sort": (lambda: drawn(7).sort(stable=True).indices, 0, 6),
    "topk": (lambda: drawn(3, 50).topk(5).indices, 0, 49),
    "max": (lambda: drawn(3, 5, 2).max(1).indices, 0, 4),
    "the largest": (lambda: numbers(2, 9).max(), 2, 8),
    "median": (lambda: drawn(3, 5).median(0).indices, 0, 2),
    "kthvalue": (lambda: drawn(3, 5).kthvalue(2).indices, 0, 4),
    "cummin": (lambda: drawn(3, 5).cummin(-2).indices, 0, 2),
    "a draw": (lambda: drawn(3, 5).softmax(1).multinomial(2), 0, 4),
    "a bucket": (lambda: torch.bucketize(drawn(5), drawn(3).sort().values), 0, 3),
    "a place": (lambda: torch.searchsorted(drawn(3).sort().values, drawn(5)), 0, 3),
    "positions in a plane": (
        lambda: max_pool2d(drawn(2, 3, 4, 6), 2, return_indices=True)[1],
        *(0, 23),
    ),
    "positions in a block": (
        lambda: max_pool3d(drawn(2, 3, 4, 6, 2), 2, return_indices=True)[1],
        *(0, 47),
    ),
    "remainder": (lambda: drawn(20).long() % 7, 0, 6),
    "remainder of what is less": (lambda: numbers(2, 5) % 7, 2, 4),
    "remainder by what is negative": (lambda: drawn(20).long() % -7, -6, 0),
    "remainder of a number": (lambda: 50 % numbers(1, 9), 0, 7),
    "remainder with a sign": (lambda: drawn(20).long().fmod(4), -3, 3),
    "remainder without a sign": (lambda: numbers(0, 50).fmod(4), 0, 3),
    "quotient": (lambda: numbers(-7, 50) // 4, -2, 12),
    "quotient cut off": (
        lambda: torch.div(numbers(-7, 50), 4, rounding_mode="trunc"),
        *(-1, 12),
    ),
    "quotient by several": (lambda: numbers(8, 50) // numbers(2, 4), 2, 24),
    "clamp": (lambda: drawn(20).long().clamp(-1, 5), -1, 5),
    "clamp from below": (lambda: numbers(-9, 6).clamp(min=0), 0, 5),
    "clamp where the ends are crossed": (lambda: numbers(-9, 6).clamp(4, 2), 2, 2),
    "clamp by tensors": (
        lambda: numbers(-9, 60).clamp(numbers(0, 3), numbers(5, 9)),
        *(0, 8),
    ),
    "the smaller": (lambda: numbers(0, 90).minimum(numbers(3, 6)), 0, 5),
    "the larger": (lambda: numbers(0, 9).maximum(numbers(3, 6)), 3, 8),
    "bits": (lambda: drawn(20).long() & 6, 0, 6),
    "bits of two": (lambda: numbers(-5, 9) & numbers(0, 4), 0, 3),
    "product": (lambda: numbers(-2, 5) * numbers(-3, 3), -12, 8),
    "negative": (lambda: -numbers(-2, 5), -4, 2),
    "absolute": (lambda: numbers(-6, 3).abs(), 0, 6),
    "difference from": (lambda: 5 - numbers(0, 4), 2, 5),
    "positions in a batch": (
        lambda: drawn(3, 50).topk(5).indices + torch.arange(3)[:, None] * 50,
        *(0, 149),
    ),
    "a mask of what is filled": (
        lambda: numbers(0, 4).masked_fill(drawn(40) > 0, 9),
        *(0, 9),
    ),
}
UNKNOWN = {
    "remainder by what may be 0": lambda: drawn(20).long() % (drawn(1).long() + 9),
    "clamp from below": lambda: drawn(20).long().clamp(min=9),
    "bits of what has signs": lambda: drawn(20).long() & -2,
    "what wraps": lambda: numbers(0, 200).to(torch.uint8) * 2,
    "a quotient by what may be 0": lambda: numbers(0, 99) // (drawn(1).long() + 9),
    "a fraction": lambda: (numbers(0, 99) / 3).long() + 9,
}


def list_doubts(make):
    """Return what is said of numbers of which an operator takes 0 alone."""
    with record(as_device="cpu", limits=NONE) as trace:
        embedding(make().long(), torch.randn(1, 2))
    return [note.text for note in trace.notes if note.kind == "unchecked"]


@pytest.mark.parametrize("name", KNOWN)
def test_bounds_are_known_without_a_value(name):
    make, low, high = KNOWN[name]
    (text,) = list_doubts(make)
    assert f"may be {low} to {high}, allowed are 0 to 0" in text


@pytest.mark.parametrize("name", KNOWN)
def test_values_lie_within_their_bounds(name):
    make, low, high = KNOWN[name]
    for _ in range(20):
        made = make()
        assert low <= made.min()
        assert made.max() <= high


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_certain_is_not_said(name):
    assert list_doubts(UNKNOWN[name]) == []


def test_positions_among_values_that_differ_are_refused_where_these_are_more():
    with record(as_device="cpu"), pytest.raises(IndexError):
        _, inverse = torch.tensor([7, 7, 9, 8]).unique(return_inverse=True)
        embedding(inverse, torch.randn(2, 2))
