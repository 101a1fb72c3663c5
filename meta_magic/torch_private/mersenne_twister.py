"""Advance torch's generator on the CPU, an MT19937, without making the numbers between.

One word of the generator more is a linear step of 19937 bits, and so is any number of
them: ``n`` steps are the polynomial x^n modulo the characteristic polynomial of one, in
that step. A polynomial over GF(2) is an integer here, whose bit i is that of x^i.

Source:
    H. Haramoto, M. Matsumoto, T. Nishimura, F. Panneton, P. L'Ecuyer: Efficient Jump
    Ahead for F2-Linear Random Number Generators, INFORMS J. on Computing 20 (2008).
    M. Matsumoto, T. Nishimura: Mersenne Twister, ACM TOMACS 8 (1998): the recurrence
    (2.1), and its characteristic polynomial (appendix A).
"""

from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["N", "advance", "count_taken"]

Words = npt.NDArray[np.uint32]

N: Final = 624
M: Final = 397
DEGREE: Final = 19937
TWIST: Final = 0x9908B0DF
HIGH: Final = np.uint32(1 << 31)
LOW: Final = np.uint32(HIGH - 1)

NBYTES: Final = 5056
LEFT: Final = slice(8, 12)
NEXT: Final = slice(16, 24)
BLOCK: Final = slice(24, 24 + 8 * N)
"""Where a state that ``Generator.get_state`` returns has how many words of the block
are left, plus one; which of them is the next; and the block, each word as 64 bits. What
else it has, a seed and numbers that ``normal_`` left, stays. If torch lays it out in
another way, numbers of no use are drawn."""


def advance(state: Tensor, n: int) -> Tensor | None:
    """Return the state of a generator on the CPU after it has made more numbers.

    Args:
        state: The state before, as ``Generator.get_state`` returns it.
        n: How many words of 32 bits are made; from 0.

    Returns:
        The state after, to the bit; None if ``state`` is not laid out as known.
    """
    taken = count_taken(state)
    if taken is None:
        return None
    after = state.clone()
    if n:
        data = after.numpy()
        n_blocks, last = divmod(taken + n - 1, N)
        data[LEFT].view(np.int32)[:] = N - last
        data[NEXT].view(np.uint64)[:] = last + 1
        if n_blocks:
            block = data[BLOCK].view(np.uint64)
            block[:] = jump(block.astype(np.uint32), n_blocks)
    return after


def count_taken(state: Tensor) -> int | None:
    """Return how many words of its block a generator on the CPU has made: 1 to 624.

    That of one just seeded, which is no part of its numbers, is as if all were made.
    None if the state is not laid out as known.
    """
    data = state.numpy()
    if data.size != NBYTES:
        return None
    taken = N + 1 - int(data[LEFT].view(np.int32)[0])
    following = int(data[NEXT].view(np.uint64)[0])
    is_known = 0 < taken <= N and following in {taken, taken % N}
    return taken if is_known else None


def jump(block: Words, n_blocks: int) -> Words:
    """Return the block of words that comes some blocks, from 1, after one.

    The recurrence of the characteristic polynomial holds from word 1 on: of word 0 all
    but the highest bit is no part of the state.
    """
    polynomial = power(N * n_blocks - 1)
    words = np.concatenate([*make_blocks(block, polynomial.bit_length() // N + 2)])
    jumped = np.zeros(N, np.uint32)
    digits = np.frombuffer(f"{polynomial:b}".encode(), np.uint8)[::-1]
    for i in np.flatnonzero(digits == ord("1")).tolist():
        jumped ^= words[i + 1 : i + 1 + N]
    return jumped


def make_blocks(block: Words, n: int) -> list[Words]:
    """Return a block of words, and those that follow it; ``n`` in all."""
    blocks = [block]
    while len(blocks) < n:
        old, new = blocks[-1], np.empty(N, np.uint32)
        twisted = twist(old[:-1], old[1:])
        new[: N - M] = old[M:] ^ twisted[: N - M]
        for start in range(N - M, N - 1, N - M):
            end = min(start + N - M, N - 1)
            new[start:end] = new[start - N + M : end - N + M] ^ twisted[start:end]
        new[-1:] = new[M - 1 : M] ^ twist(old[-1:], new[:1])
        blocks.append(new)
    return blocks


def twist(first: Words, second: Words) -> Words:
    """Return the part of new words that comes from old ones and from those after."""
    joined = (first & HIGH) | (second & LOW)
    return (joined >> np.uint32(1)) ^ (second & np.uint32(1)) * np.uint32(TWIST)


@lru_cache(maxsize=64)
def power(n: int) -> int:
    """Return x^n modulo the characteristic polynomial."""
    result = 1
    for digit in f"{n:b}":
        squared = int(f"{result:b}", 4)  # each x^i becomes x^2i
        result = reduce(squared << int(digit))
    return result


def reduce(polynomial: int) -> int:
    """Return a polynomial modulo the characteristic one."""
    while high := polynomial >> DEGREE:
        polynomial ^= high << DEGREE
        for exponent in find_exponents():
            polynomial ^= high << exponent
    return polynomial


@cache
def find_exponents() -> tuple[int, ...]:
    """Return the exponents of the characteristic polynomial, but the highest.

    That is P Q^31 + a_0 P Q^30 + ... + a_30 P + a_31, where P is x^624 + x^397, Q is
    P / x, and a_i are the bits of ``TWIST``, from the lowest on.
    """
    terms = {0}  # Horner's rule, in Q
    for i in range(31):
        terms = times_sum(terms, N - 1, M - 1) ^ ({0} if TWIST >> i & 1 else set())
    terms = times_sum(terms, N, M) ^ ({0} if TWIST >> 31 & 1 else set())
    return tuple(terms - {DEGREE})


def times_sum(terms: set[int], first: int, second: int) -> set[int]:
    """Return the exponents of a polynomial times the sum of two powers of x."""
    return {t + first for t in terms} ^ {t + second for t in terms}
