"""The memory of a generator of the CPU: a state put there without a copy of it all."""

import ctypes
from struct import Struct
from typing import Any, Final

from torch import Generator

from meta_magic.torch_private.tensor_internals import address_of_generator

__all__ = ["GeneratorMemory", "find_memory"]

NUMBERS: Final = Struct("=III")
"""The first three numbers of a Mersenne Twister, where it keeps them."""

N_BEFORE: Final = 20
"""Bytes of what stands before its numbers: seed, how many are left, which is next."""

NBYTES: Final = N_BEFORE + 4 * 624 + 28
"""Of that, of its numbers, and of the normal ones that were drawn ahead."""

SEARCHED_NBYTES: Final = 512
"""How far from its beginning a generator's numbers are searched for; less than it has
bytes altogether."""


class GeneratorMemory:
    """What decides what a generator draws next, where torch has it.

    Args:
        generator: Stays alive as long as this.
        address: Of its numbers.
    """

    def __init__(self, generator: Generator, address: int) -> None:
        self._generator = generator
        kind: Any = ctypes.c_char * NBYTES
        self._bytes = kind.from_address(address - N_BEFORE)
        self._put: bytes = self._bytes.raw

    def is_as_put(self) -> bool:
        """Whether nothing was drawn, seeded or set since numbers were last put here."""
        return bool(self._bytes.raw == self._put)

    def put(self, *numbers: int) -> None:
        """Put three numbers in the place of the first ones."""
        self._bytes[N_BEFORE : N_BEFORE + NUMBERS.size] = NUMBERS.pack(*numbers)
        self._put = self._bytes.raw


def find_memory(generator: Generator, *numbers: int) -> GeneratorMemory | None:
    """Return the memory of a generator of the CPU; None if it is not as it was known.

    Without it each draw copies all of the state, to be read and to be written.

    Args:
        generator: The generator.
        numbers: Its first three, by which they are found.
    """
    address = address_of_generator(generator)
    found = ctypes.string_at(address, SEARCHED_NBYTES).find(NUMBERS.pack(*numbers))
    return None if found < N_BEFORE else GeneratorMemory(generator, address + found)
