"""Put tokens into the states of generators while a recording runs, and read them.

A token names the last draw from a generator; see ``draws``. Read :class:`Stream` first.
"""

from typing import Final

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.recording.identities.generator_carryover import (
    is_named,
    is_on_cpu,
    mark_state,
)
from meta_magic.recording.identities.storages import string_at
from meta_magic.torch_private.generator_state import GeneratorMemory, find_memory
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

MARK: Final = 0x6D6D << 48
"""Highest bits of every token, then 16 of the recording and 32 of the draw."""

MAGIC: Final = 0x746F6B6E
TOKEN: Final = slice(3, 6)
"""Position of a token and the magic in a CPU generator's state, in words of 64 bits:
they replace the first numbers of its Mersenne Twister, of 32 bits each."""

UNKNOWN: Final = 0

ELSEWHERE: Final = 0xE15E
"""Changes a seed, so that another device draws other numbers than the CPU."""


class Stream:
    """One generator while recording.

    Attributes:
        number: Its index in ``Randomness.generators``.
        shadow: Its state without a token: after the last real draw or seeding.
        end: Its state at the end of the block, as the source of a draw.
        saved: Its state at the last exit of :class:`~.draws.Draws`, and its token then.
    """

    def __init__(self, number: int, generator: Generator) -> None:
        self.number = number
        self.generator = generator
        self.shadow: Tensor | None = None
        self.end = UNKNOWN
        self.saved: tuple[bytes, int] | None = None
        self._marked: tuple[Tensor, Tensor] | None = None
        self._memory: GeneratorMemory | None = None
        self._put = UNKNOWN

    @property
    def device(self) -> str:
        """Name of its device; "" if it replaces the generator of another device."""
        return "" if is_named(self.generator) else str(self.generator.device)

    def put(self, token: int) -> None:
        """Write a token into the generator."""
        numbers = token >> 32, token & 0xFFFFFFFF, MAGIC
        memory, shadow, marked = self._memory, self.shadow, self._marked
        is_marked = marked is not None and marked[0] is shadow
        if memory is not None and is_marked and memory.is_as_put():
            memory.put(*numbers)
        elif shadow is not None and is_on_cpu(self.generator):
            self._put_marked(shadow, numbers)
        else:
            self._memory = None
            self.generator.manual_seed(token)
        self._put = token

    def _put_marked(self, shadow: Tensor, numbers: tuple[int, int, int]) -> None:
        """Set a state with a token in it."""
        with DisableTorchFunction(), DisableTorchDispatch():
            if self._marked is None or self._marked[0] is not shadow:
                self._marked = (shadow, shadow.clone())
            marked = self._marked[1]
            marked.numpy().view(np.uint64)[TOKEN] = numbers
            self.generator.set_state(marked)
        self._memory = find_memory(self.generator, *numbers)

    def find_token(self) -> int:
        """Return the token written last, if the generator's memory shows it unchanged.

        ``UNKNOWN`` if it changed, or if only a copy of its state would show it.
        """
        memory = self._memory
        return self._put if memory is not None and memory.is_as_put() else UNKNOWN

    def read(self) -> tuple[int | None, Tensor]:
        """Return the token that is in the generator, if any, and its state."""
        state = copy_state(self.generator)
        if not is_on_cpu(self.generator):
            seed = self.generator.initial_seed()
            return (seed if seed >> 48 == MARK >> 48 else None), state
        with DisableTorchFunction(), DisableTorchDispatch():
            high, low, magic = state.numpy().view(np.uint64)[TOKEN].tolist()
        is_token = magic == MAGIC and high >> 16 == MARK >> 48
        return (high << 32 | low if is_token else None), state


def make_other(generator: Generator, seed: int | None) -> Generator:
    """Return a new generator with a seed, or with the state of another one."""
    other = Generator()
    if seed is not None:
        other.manual_seed(seed)
    elif is_on_cpu(generator):
        put_state(other, copy_state(generator))
    return other


def mark(generator: Generator, state: Tensor) -> Tensor:
    """Return the state of a generator with a mark for the next recording."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return mark_state(state) if is_on_cpu(generator) else state


def copy_state(generator: Generator) -> Tensor:
    """Return the state of a generator; no mode sees this."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return generator.get_state()


def put_state(generator: Generator, state: Tensor) -> None:
    """Set the state of a generator; no mode sees this."""
    with DisableTorchFunction(), DisableTorchDispatch():
        generator.set_state(state)


def as_plain(state: Tensor) -> bytes:
    """Return the state of a generator as plain data."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return string_at(state.data_ptr(), state.numel())


def read_accelerators() -> tuple[tuple[str, bytes], ...]:
    """Return device and state of each CUDA device's default generator."""
    return tuple(
        (f"cuda:{index}", as_plain(copy_state(generator)))
        for index, generator in enumerate(torch.cuda.default_generators)
    )
