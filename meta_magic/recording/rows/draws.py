"""Record where each random operator would have begun to draw.

A random operator draws nothing on meta and moves no generator. So after each one a
*token* is written into the state of its generator, which names this very draw. Whoever
then takes the state, puts it back or seeds anew (``get_state``, ``fork_rng``,
``manual_seed``) carries tokens about, and the next draw reads from the state which
earlier draw it would have followed. Outside of the block no token is left.

Of recordings within each other the outermost one writes the tokens: it sees all draws.
"""

import ctypes
from array import array
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.recording.signatures.arguments import Given
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_generator
from meta_magic.trace.program import Randomness

__all__ = ["Drawing", "Draws"]

MARK: Final = 0x6D6D << 48
"""Highest bits of every token, then 16 of the recording and 32 of the draw."""

MAGIC: Final = 0x746F6B6E
TOKEN: Final = slice(3, 6)
"""Where in a CPU generator's state, as words of 64 bits, a token and the magic stand:
in the place of the first numbers of its Mersenne Twister, of 32 bits each."""

UNKNOWN: Final = 0

n_recordings = 0


class Drawing:
    """How a random operator draws.

    Attributes:
        generator: What it was told to draw from; None for torch's default.
        is_real: Whether it makes real numbers, and not just meta tensors.
    """

    def __init__(self, given: Given) -> None:
        values = (*given.args, *given.kwargs.values())
        found = (v for v in values if isinstance(v, torch.Generator))
        self.generator: torch.Generator | None = next(found, None)
        if given.inputs:
            self.is_real = not any(seen[2].is_meta for _, seen in given.inputs)
        else:
            device = given.kwargs.get("device")
            self.is_real = device is None or device.type != "meta"


class Stream:
    """One generator while recording.

    Attributes:
        number: Its place in ``Randomness.generators``.
        generator: The generator.
        shadow: The state that it would have on plain meta, where only real draws move
            it; a user who draws real numbers gets them from here.
        end: Where the block left it, as the source of a draw.
        left: Its state when the block was left the last time, and the token that it
            had in there.
    """

    def __init__(self, number: int, generator: Generator) -> None:
        self.number = number
        self.generator = generator
        self.shadow: Tensor | None = None
        self.end = UNKNOWN
        self.left: tuple[bytes, int] | None = None
        self._marked: tuple[Tensor, Tensor] | None = None

    def put(self, token: int) -> None:
        """Write a token into the generator, over the state of plain meta."""
        if self.generator.device.type != "cpu" or self.shadow is None:
            self.generator.manual_seed(token)
            return
        with DisableTorchFunction(), DisableTorchDispatch():
            if self._marked is None or self._marked[0] is not self.shadow:
                self._marked = (self.shadow, self.shadow.clone())
            marked = self._marked[1]
            words = marked.numpy().view(np.uint64)[TOKEN]
            words[:] = token >> 32, token & 0xFFFFFFFF, MAGIC
            self.generator.set_state(marked)

    def read(self) -> tuple[int | None, Tensor]:
        """Return the token that is in the generator, if any, and its state."""
        state = copy_state(self.generator)
        if self.generator.device.type != "cpu":
            seed = self.generator.initial_seed()
            return (seed if seed >> 48 == MARK >> 48 else None), state
        with DisableTorchFunction(), DisableTorchDispatch():
            high, low, magic = state.numpy().view(np.uint64)[TOKEN].tolist()
        is_token = magic == MAGIC and high >> 16 == MARK >> 48
        return (high << 32 | low if is_token else None), state


class Draws:
    """The draws of one recording; entered and left with each stretch of it."""

    def __init__(self) -> None:
        global n_recordings  # noqa: PLW0603  tokens of two recordings must differ
        n_recordings += 1
        self._base = MARK | (n_recordings & 0xFFFF) << 32
        self._words = array("I")
        self._shadows: list[Tensor | None] = []
        self._states: list[bytes] = []
        self._streams: dict[int, Stream] = {}
        self._accelerator: tuple[tuple[str, bytes], ...] = ()
        self._default = self._open(torch.default_generator)

    def __enter__(self) -> None:
        for stream in self._streams.values():
            left = stream.left
            if left is not None and left[0] == as_plain(copy_state(stream.generator)):
                stream.put(left[1])

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values() if self._words else ():
            token = stream.read()[0]
            stream.end = self._find_source(stream)
            stream.left = None
            if token is not None and stream.end and stream.shadow is not None:
                put_state(stream.generator, stream.shadow)
                stream.left = (as_plain(stream.shadow), token)

    def note(self, op: int, generator: Generator | None = None) -> None:
        """Record that a meta operator would have drawn now.

        Args:
            op: Its number.
            generator: What it was told to draw from.
        """
        stream = self._stream_of(generator)
        self._add(op, stream, self._find_source(stream))

    def run(self, op: int, generator: Generator | None, call: Callable[[], Any]) -> Any:
        """Run an operator that draws for real, from where plain meta would have it."""
        stream = self._stream_of(generator)
        token, before = stream.read()
        source = self._find_source(stream)
        if token is not None and source and stream.shadow is not None:
            put_state(stream.generator, stream.shadow)
        try:
            returned = call()
        except BaseException:
            put_state(stream.generator, before)
            raise
        token, state = stream.read()
        if token is None:
            stream.shadow = state
        self._add(op, stream, source if token is None else UNKNOWN)
        return returned

    def build_randomness(self) -> Randomness:
        """Return the record of all draws."""
        streams = self._streams.values()
        return Randomness(
            draws=self._words.tobytes(),
            states=tuple(self._states),
            generators=tuple(str(stream.generator.device) for stream in streams),
            ends=tuple(stream.end for stream in streams),
            accelerator=self._accelerator,
        )

    def state_left(self) -> bytes | None:
        """Return the state in which the block left torch's default generator.

        None if nothing was drawn from it.
        """
        return None if self._default.left is None else self._default.left[0]

    def _stream_of(self, generator: Generator | None) -> Stream:
        if generator is None:
            return self._default
        return self._streams.get(address_of_generator(generator)) or self._open(
            generator
        )

    def _open(self, generator: Generator) -> Stream:
        stream = Stream(len(self._streams), generator)
        self._streams[address_of_generator(generator)] = stream
        return stream

    def _find_source(self, stream: Stream) -> int:
        """Return where a generator stands, and note what plain meta would have."""
        token, state = stream.read()
        if token is None:
            stream.shadow = state
            plain = as_plain(state)
            if not self._states or self._states[-1] != plain:
                self._states.append(plain)
            return 2 * len(self._states) - 1
        draw = token - self._base
        if not 0 <= draw < len(self._shadows):
            return UNKNOWN  # the token of a recording around this one
        stream.shadow = self._shadows[draw]
        return 2 * draw + 2

    @unbroken
    def _add(self, op: int, stream: Stream, source: int) -> None:
        draw = len(self._shadows)
        if draw == 0 and torch.cuda.is_initialized():
            self._accelerator = read_accelerators()
        self._words.extend((op, stream.number, source))
        self._shadows.append(stream.shadow)
        if source:  # else it holds the token of a recording around this one
            stream.put(self._base | draw)


def copy_state(generator: Generator) -> Tensor:
    """Return the state of a generator, unseen by any mode."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return generator.get_state()


def put_state(generator: Generator, state: Tensor) -> None:
    """Set the state of a generator, unseen by any mode."""
    with DisableTorchFunction(), DisableTorchDispatch():
        generator.set_state(state)


def as_plain(state: Tensor) -> bytes:
    """Return the state of a generator as plain data."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return ctypes.string_at(state.data_ptr(), state.numel())


def read_accelerators() -> tuple[tuple[str, bytes], ...]:
    """Return device and state of each CUDA device's default generator."""
    return tuple(
        (f"cuda:{index}", as_plain(copy_state(generator)))
        for index, generator in enumerate(torch.cuda.default_generators)
    )
