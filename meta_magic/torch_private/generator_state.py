"""The state of torch's generator on the CPU, an MT19937.

``advance`` gives the state after n numbers without drawing them: a replay of one
parameter would otherwise draw all parameters before it. ``GeneratorMemory`` writes
three numbers where torch keeps them: ``set_state`` would copy the whole state at each
draw.

A step of the generator, which makes one word, is a linear map of 19937 bits. So ``n``
steps are the n-th power of the map: the polynomial x^n, modulo the characteristic
polynomial, applied to the map. A polynomial over GF(2) is an integer here; its bit i is
the coefficient of x^i.

Source: H. Haramoto, M. Matsumoto, T. Nishimura, F. Panneton, P. L'Ecuyer: Efficient
Jump Ahead for F2-Linear Random Number Generators, INFORMS J. on Computing 20 (2008). M.
Matsumoto, T. Nishimura: Mersenne Twister, ACM TOMACS 8 (1998): the recurrence (2.1),
and its characteristic polynomial (appendix A).
"""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_generator

Words = npt.NDArray[np.uint32]

N: Final = 624
M: Final = 397
DEGREE: Final = 19937
TWIST: Final = 0x9908B0DF
AT_ONCE: Final = 4
"""Coefficients of a polynomial that are applied together: a hexadecimal digit."""
HIGH: Final = np.uint32(1 << 31)
LOW: Final = np.uint32(HIGH - 1)

# Positions in a state that ``Generator.get_state`` returns: the count of unused words
# of the block, plus one; the index of the next word; and the block, each word as 64
# bits. The rest, a seed and numbers that ``normal_`` drew ahead, does not change.
NBYTES: Final = 5056
LEFT: Final = slice(8, 12)
NEXT: Final = slice(16, 24)
BLOCK: Final = slice(24, 24 + 8 * N)


def advance(state: Tensor, n: int) -> Tensor | None:
    """Return the state of a CPU generator after ``n`` more words of 32 bits.

    None if torch lays out ``state`` in another way.
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

    After seeding, the words of the block are never drawn: all of them count as made.
    None if torch lays out the state in another way.
    """
    data = state.numpy()
    if data.size != NBYTES:
        return None
    taken = N + 1 - int(data[LEFT].view(np.int32)[0])
    following = int(data[NEXT].view(np.uint64)[0])
    is_known = 0 < taken <= N and following in {taken, taken % N}
    return taken if is_known else None


def jump(block: Words, n_blocks: int) -> Words:
    """Return the block of words that is ``n_blocks``, at least 1, after a block.

    The recurrence of the characteristic polynomial holds from word 1 on: of word 0 only
    the highest bit is part of the state.
    """
    polynomial = power(N * n_blocks - 1)
    n_digits = -(-polynomial.bit_length() // AT_ONCE)
    n_words = n_digits * AT_ONCE + N
    words = np.concatenate([*make_blocks(block, n_words // N + 2)])
    sums = [np.zeros(n_words, np.uint32)]  # of words by the coefficients that add them
    for i in range(AT_ONCE):
        sums += [one ^ words[i + 1 : i + 1 + n_words] for one in sums]
    jumped = np.zeros(N, np.uint32)
    for at, digit in enumerate(reversed(f"{polynomial:0{n_digits}x}")):
        jumped ^= sums[int(digit, 16)][at * AT_ONCE : at * AT_ONCE + N]
    return jumped


def make_blocks(block: Words, n: int) -> list[Words]:
    """Return a block of words and those that follow it, ``n`` in all."""
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
    """Return the part of new words that comes from old words and their successors."""
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
    """Return the exponents of the characteristic polynomial, except the highest.

    The polynomial is P Q^31 + a_0 P Q^30 + ... + a_30 P + a_31, where P is
    x^624 + x^397, Q is P / x, and a_i are the bits of ``TWIST``, the lowest first.
    """
    terms = {0}  # Horner's rule, in Q
    for i in range(31):
        terms = times_sum(terms, N - 1, M - 1) ^ ({0} if TWIST >> i & 1 else set())
    terms = times_sum(terms, N, M) ^ ({0} if TWIST >> 31 & 1 else set())
    return tuple(terms - {DEGREE})


def times_sum(terms: set[int], first: int, second: int) -> set[int]:
    """Return the exponents of a polynomial times the sum of two powers of x."""
    return {t + first for t in terms} ^ {t + second for t in terms}


# In memory: the first three numbers; before them the seed, how many are left, and
# which is next; after all numbers those that normal_ drew ahead.
NUMBERS: Final = Struct("=III")
N_BEFORE: Final = 20
NBYTES_NUMBERS: Final = 4 * N
N_AHEAD: Final = 28

# How far from its address a generator's numbers are searched; less than its size.
SEARCHED_NBYTES: Final = 512

TRIED: Final = 0x6D6D0001, 7, 0x746F6B6E
FIRST_NUMBERS: Final = slice(3, 6)  # among the 64-bit numbers of a state
CHANGES: Final[tuple[Callable[[Generator], Any], ...]] = (
    lambda generator: torch.rand(1, generator=generator, device="cpu"),
    lambda generator: torch.randn(1, generator=generator, device="cpu"),
    lambda generator: generator.manual_seed(1),
    lambda generator: generator.set_state(Generator().get_state()),
)


class GeneratorMemory:
    """The memory of torch's that decides what a generator draws next."""

    def __init__(self, generator: Generator, address: int) -> None:
        self._generator = generator
        kind: Any = ctypes.c_char * (N_BEFORE + NUMBERS.size)
        self._head = kind.from_address(address - N_BEFORE)
        kind = ctypes.c_char * N_AHEAD
        self._ahead = kind.from_address(address + NBYTES_NUMBERS)
        self._put = self._head.raw, self._ahead.raw

    def is_as_put(self) -> bool:
        """Whether nothing was drawn, seeded or set since numbers were last put here.

        None of these changes the other numbers alone.
        """
        return (self._head.raw, self._ahead.raw) == self._put

    def put(self, *numbers: int) -> None:
        """Write the first three numbers."""
        NUMBERS.pack_into(self._head, N_BEFORE, *numbers)
        self._put = self._head.raw, self._ahead.raw


def find_memory(generator: Generator, *numbers: int) -> GeneratorMemory | None:
    """Return the memory of a generator on the CPU, found by its first three numbers.

    None if this torch lays it out in another way.
    """
    return search(generator, *numbers) if sees_changes() else None


def search(generator: Generator, *numbers: int) -> GeneratorMemory | None:
    """Return the memory of a generator, whatever its layout, or None."""
    address = address_of_generator(generator)
    found = ctypes.string_at(address, SEARCHED_NBYTES).find(NUMBERS.pack(*numbers))
    return None if found < N_BEFORE else GeneratorMemory(generator, address + found)


@cache
def sees_changes() -> bool:
    """Whether each of the ``CHANGES`` is visible in a generator's memory."""
    with DisableTorchFunction(), DisableTorchDispatch():
        generator = Generator()
        for change in CHANGES:
            state = generator.get_state()
            state.numpy().view(np.uint64)[FIRST_NUMBERS] = TRIED
            generator.set_state(state)
            memory = search(generator, *TRIED)
            if memory is None or not memory.is_as_put():
                return False
            change(generator)
            if memory.is_as_put():
                return False
    return True
