"""Record where each random operator would have begun to draw.

A random operator draws nothing on meta and moves no generator. So after each one its
generator is given a *token*: a seed that names this very draw. Whoever then looks at
the generator, puts it back or seeds it anew (``manual_seed``, ``fork_rng``,
``get_state``) carries tokens about, and the next draw reads from its seed which
earlier draw it would have followed. Outside of the block no token is ever seen.
"""

import ctypes
from array import array
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.recording.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
)
from meta_magic.trace.program import Randomness

__all__ = ["Draws"]

MARK: Final = 0x6D6D << 48
"""Highest bits of every token, then 16 of the recording and 32 of the draw."""

UNKNOWN: Final = 0

n_recordings = 0


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
            generator, left = stream.generator, stream.left
            if left is not None and left[0] == read_state(generator):
                generator.manual_seed(left[1])

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values() if self._words else ():
            seed = stream.generator.initial_seed()
            stream.end = self._find_source(stream)
            stream.left = None
            if stream.end and not stream.end & 1 and stream.shadow is not None:
                put_state(stream.generator, stream.shadow)
                stream.left = (read_state(stream.generator), seed)

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
        seed = stream.generator.initial_seed()
        source = self._find_source(stream)
        if stream.shadow is not None:
            put_state(stream.generator, stream.shadow)
        try:
            returned = call()
        except BaseException:
            if source and not source & 1:
                stream.generator.manual_seed(seed)
            raise
        stream.shadow = copy_state(stream.generator)
        self._add(op, stream, source)
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
        return self._streams.get(id(generator)) or self._open(generator)

    def _open(self, generator: Generator) -> Stream:
        stream = Stream(len(self._streams), generator)
        self._streams[id(generator)] = stream  # which holds it, so that ids are unique
        return stream

    def _find_source(self, stream: Stream) -> int:
        """Return where a generator stands, and note what plain meta would have."""
        seed = stream.generator.initial_seed()
        draw = seed - self._base
        if 0 <= draw < len(self._shadows):
            stream.shadow = self._shadows[draw]
            return 2 * draw + 2
        if seed >> 48 == MARK >> 48:
            return UNKNOWN  # the token of a recording around this one
        stream.shadow = copy_state(stream.generator)
        state = read_state(stream.generator)
        if not self._states or self._states[-1] != state:
            self._states.append(state)
        return 2 * len(self._states) - 1

    def _add(self, op: int, stream: Stream, source: int) -> None:
        draw = len(self._shadows)
        if draw == 0 and torch.cuda.is_initialized():
            self._accelerator = read_accelerators()
        self._words.extend((op, stream.number, source))
        self._shadows.append(stream.shadow)
        stream.generator.manual_seed(self._base | draw)


def copy_state(generator: Generator) -> Tensor:
    """Return the state of a generator, unseen by any mode."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return generator.get_state()


def put_state(generator: Generator, state: Tensor) -> None:
    """Set the state of a generator, unseen by any mode."""
    with DisableTorchFunction(), DisableTorchDispatch():
        generator.set_state(state)


def read_state(generator: Generator) -> bytes:
    """Return the state of a generator as plain data."""
    state = copy_state(generator)
    return ctypes.string_at(state.data_ptr(), state.numel())


def read_accelerators() -> tuple[tuple[str, bytes], ...]:
    """Return device and state of each CUDA device's default generator."""
    return tuple(
        (f"cuda:{index}", read_state(generator))
        for index, generator in enumerate(torch.cuda.default_generators)
    )
