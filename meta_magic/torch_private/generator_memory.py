"""The memory of a generator of the CPU: a state put there without a copy of it all."""

import ctypes
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final

import numpy as np
import torch
from torch import Generator

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_generator

__all__ = ["GeneratorMemory", "find_memory"]

NUMBERS: Final = Struct("=III")
"""The first three numbers of a Mersenne Twister, where it keeps them."""

N_BEFORE: Final = 20
"""Bytes of what stands before its numbers: seed, how many are left, which is next."""

NBYTES_NUMBERS: Final = 4 * 624

N_AHEAD: Final = 28
"""Bytes of the normal numbers that were drawn ahead, after its own."""

TRIED: Final = 0x6D6D0001, 7, 0x746F6B6E
FIRST_NUMBERS: Final = slice(3, 6)
"""Where a state of the CPU's generator has those three, among whole numbers."""

CHANGES: Final[tuple[Callable[[Generator], Any], ...]] = (
    lambda generator: torch.rand(1, generator=generator, device="cpu"),
    lambda generator: torch.randn(1, generator=generator, device="cpu"),
    lambda generator: generator.manual_seed(1),
    lambda generator: generator.set_state(Generator().get_state()),
)
"""What moves a generator."""

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
        kind: Any = ctypes.c_char * (N_BEFORE + NUMBERS.size)
        self._head = kind.from_address(address - N_BEFORE)
        kind = ctypes.c_char * N_AHEAD
        self._ahead = kind.from_address(address + NBYTES_NUMBERS)
        self._put = self._head.raw, self._ahead.raw

    def is_as_put(self) -> bool:
        """Whether nothing was drawn, seeded or set since numbers were last put here.

        The other numbers change by none of these alone.
        """
        return (self._head.raw, self._ahead.raw) == self._put

    def put(self, *numbers: int) -> None:
        """Put three numbers in the place of the first ones."""
        NUMBERS.pack_into(self._head, N_BEFORE, *numbers)
        self._put = self._head.raw, self._ahead.raw


def find_memory(generator: Generator, *numbers: int) -> GeneratorMemory | None:
    """Return the memory of a generator of the CPU; None if it is not as it was known.

    Without it each draw copies all of the state, to be read and to be written.

    Args:
        generator: The generator.
        numbers: Its first three, by which they are found.
    """
    return search(generator, *numbers) if sees_changes() else None


def search(generator: Generator, *numbers: int) -> GeneratorMemory | None:
    """Do so whatever else is known of this torch."""
    address = address_of_generator(generator)
    found = ctypes.string_at(address, SEARCHED_NBYTES).find(NUMBERS.pack(*numbers))
    return None if found < N_BEFORE else GeneratorMemory(generator, address + found)


@cache
def sees_changes() -> bool:
    """Whether whatever moves a generator is seen in its memory, in this torch."""
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
