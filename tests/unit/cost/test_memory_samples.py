"""Polynomials through three recordings, and those that the recordings are made of."""

from fractions import Fraction
from random import Random

import pytest

from meta_magic.cost.memory_samples import interpolate

SIZES = [(2, 3, 4), (128, 256, 384), (2, 3, 64), (17, 12, 7)]


def make_programs(seed, sizes, n_calls=40):
    """Return random quadratics, one a call, and what each is at some sizes."""
    random = Random(seed)
    made = [[random.randrange(10**9) for _ in range(3)] for _ in range(n_calls)]

    def live(size):
        return [a + b * size + c * size * size for a, b, c in made]

    return live, interpolate(sizes, [live(size) for size in sizes])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("size", [1, 5, 64, 509, 100_003])
def test_every_call_is_exact_at_every_size(sizes, size):
    live, found = make_programs(size, sizes)
    assert found.live_nbytes(size) == live(size)
    assert found.peak_nbytes(size) == max(live(size))


def test_the_peak_moves_from_one_call_to_another():
    # 1,000 + n against 100 n: the second is larger from 11 on.
    found = interpolate((2, 3, 4), [[1000 + n, 100 * n] for n in (2, 3, 4)])
    assert [found.peak_nbytes(n) for n in (10, 11)] == [1010, 1100]


def test_what_is_no_integer_in_between_is_rounded_up():
    # Through (0, 0), (6, 3), (12, 10), by Newton's differences 0, 3, 4 at a sixth of a
    # step: 3 / 6 + 4 (1 / 6)(-5 / 6) / 2.
    found = interpolate((0, 6, 12), [[0], [3], [10]])
    assert found.live_nbytes(1) == [Fraction(2, 9)]
    assert found.peak_nbytes(1) == 1


def test_a_program_without_calls_has_no_peak():
    assert interpolate((2, 3, 4), [[], [], []]).peak_nbytes(64) == 0
