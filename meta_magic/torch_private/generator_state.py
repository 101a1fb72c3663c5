"""The state of torch's generator on the CPU, an MT19937.

``advance`` skips n words without drawing them: a replay of one parameter would
otherwise draw all parameters before it. ``GeneratorMemory`` writes three numbers where
torch keeps them: ``set_state`` would copy the whole state at each draw.

A step of the generator, which makes one word, is a linear map of 19937 bits. So bit k
of the sequence after ``n`` steps is a sum of bits of the sequence before: those that
the polynomial x^n, modulo the characteristic polynomial of the map, has coefficients
for. Such sums for all k are one correlation, which a Fourier transform computes, and
the highest bits of 19938 words in a row determine all others (``restore``). A
polynomial over GF(2) is an integer here; its bit i is the coefficient of x^i.

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
LENGTH: Final = 40_000
"""Of the transforms: at least 2 * ``DEGREE``, without large prime factors."""

HIGHEST: Final = 0x89130204
"""The bits of a drawn word whose sum is the highest bit of the word in the state."""

MIN_JUMP: Final = 2**20
"""Words from which on it is faster to skip them than to draw them."""

AT_ONCE: Final = 2**15  # pairs of words that are drawn at a time: they fit a cache

# Positions in a state that ``Generator.get_state`` returns: the count of unused words
# of the block, plus one; the index of the next word; and the block, each word as 64
# bits. The rest, a seed and numbers that ``normal_`` drew ahead, does not change.
NBYTES: Final = 5056
LEFT: Final = slice(8, 12)
NEXT: Final = slice(16, 24)
BLOCK: Final = slice(24, 24 + 8 * N)


def advance(generator: Generator, n_words: int) -> None:
    """Skip words of 32 bits of a generator on the CPU."""
    n_blocks = n_words // N if n_words >= MIN_JUMP else 0
    if n_blocks > 1:
        generator.set_state(jump(generator.get_state(), n_blocks))
        n_words -= n_blocks * N
    pairs = torch.empty(min(n_words // 2, AT_ONCE), dtype=torch.int64)
    for start in range(0, n_words // 2, AT_ONCE):
        draw_pairs(pairs[: n_words // 2 - start], generator)
    if n_words % 2:
        torch.empty(1, dtype=torch.float32).uniform_(generator=generator)


def draw_pairs(pairs: Tensor, generator: Generator) -> Tensor:
    """Draw two words for each integer of 64 bits; the upper half is drawn first."""
    return pairs.random_(-(2**63), None, generator=generator)


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


def jump(state: Tensor, n_blocks: int) -> Tensor:
    """Return the state of a CPU generator after some blocks of words, at least 2.

    The sums are over the words that follow the block of the state: the lower bits of
    its first word are no part of the state of a generator that was only seeded.
    """
    after = state.clone()
    data, generator = after.numpy(), Generator()
    data[NEXT].view(np.uint64)[:] = count_taken(state) or 0
    data[LEFT].view(np.int32)[:] = 1  # the next word is the first of another block
    generator.set_state(after)
    pairs = draw_pairs(torch.empty(DEGREE + 1, dtype=torch.int64), generator)
    words = pairs.numpy().view(np.uint32).reshape(-1, 2)[:, ::-1].ravel()
    words &= np.uint32(HIGHEST)
    for shift in (16, 8, 4, 2, 1):
        words ^= words >> np.uint32(shift)
    bits = np.fft.rfft(words & np.uint32(1), LENGTH)
    highest = add_up(bits * transform(N * (n_blocks - 1) - 1))[: DEGREE + 1]
    data[BLOCK].view(np.uint64)[:] = restore(highest)
    data[LEFT] = state.numpy()[LEFT]
    return after


def add_up(transformed: npt.NDArray[np.complex128]) -> npt.NDArray[np.uint8]:
    """Return sums of bits, as bits, of their Fourier transform."""
    sums = np.rint(np.fft.irfft(transformed, LENGTH))
    return (sums.astype(np.int64) & 1).astype(np.uint8)


def restore(highest: npt.NDArray[np.uint8]) -> Words:
    """Return a block from the highest bits of its words, and of those around them.

    The first bit is of the word before the block. The recurrence gives the lowest bits
    of words from the highest bits of later ones, and then each bit from the one below.
    """
    bits = highest.astype(np.uint32)
    lowest = bits[N:] ^ bits[M : M - N]
    block = (bits[1 : N + 1] << np.uint32(31)) | lowest[:N]
    above = lowest
    for i in range(30):
        above = above[N - 1 :] ^ above[M - 1 : M - N]
        if TWIST >> i & 1:
            above ^= lowest[: len(above)]
        block |= above[:N] << np.uint32(i + 1)
    return block


@lru_cache(maxsize=16)
def transform(n: int) -> npt.NDArray[np.complex128]:
    """Return the Fourier transform by which a sequence is correlated with x^n."""
    return transform_bits(power(n)).conj()


def transform_bits(polynomial: int) -> npt.NDArray[np.complex128]:
    """Return the Fourier transform of the coefficients of a polynomial."""
    coefficients = polynomial.to_bytes(DEGREE // 8 + 1, "little")
    bits = np.unpackbits(np.frombuffer(coefficients, np.uint8), bitorder="little")
    return np.fft.rfft(bits, LENGTH)


def power(n: int) -> int:
    """Return x^n modulo the characteristic polynomial."""
    result = 1
    for digit in f"{n:b}":
        squared = int(f"{result:b}", 4)  # each x^i becomes x^2i
        result = reduce(squared << int(digit))
    return result


def reduce(polynomial: int) -> int:
    """Return a polynomial, below x^(2 * DEGREE), modulo the characteristic one.

    The quotient is the upper half of its upper half times the inverse (Barrett).
    """
    high = polynomial >> DEGREE
    if high:
        product = add_up(transform_bits(high) * invert())
        packed = np.packbits(product[DEGREE : 2 * DEGREE], bitorder="little")
        polynomial = subtract(polynomial, int.from_bytes(packed.tobytes(), "little"))
    return polynomial


@cache
def invert() -> npt.NDArray[np.complex128]:
    """Return the transform of x^(2 * DEGREE) over the characteristic polynomial."""
    rest, quotient = 1 << 2 * DEGREE, 0
    while high := rest >> DEGREE:
        quotient, rest = quotient ^ high, subtract(rest, high)
    return transform_bits(quotient)


def subtract(polynomial: int, factor: int) -> int:
    """Subtract the characteristic polynomial times a factor from a polynomial."""
    polynomial ^= factor << DEGREE
    for exponent in find_exponents():
        polynomial ^= factor << exponent
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
