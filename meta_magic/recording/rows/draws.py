"""Record the state from which each random operator would draw.

On meta a random operator does not advance its generator. So after each one a *token* is
written into the state of the generator: the number of the draw. Code that saves,
restores or seeds the state moves the tokens along, and the next draw reads from the
state which draw came before it. At the end of the block all tokens are removed. Before
real numbers are drawn, the draws before are made (``find_missing``).

First here are tokens in states (read :class:`GeneratorStream` first), then the draws.
Of nested recordings the outermost one writes the tokens: it sees all draws.
"""

import weakref
from array import array
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.recording.identities.generator_carryover import (
    CarriedGenerator,
    elsewhere,
    find_carried_end,
    find_draw,
    find_elsewhere,
    forgotten,
    is_named,
    is_on_cpu,
    keep_carried,
    kept,
    mark_state,
    programs,
    was_used_since,
)
from meta_magic.recording.identities.storages import string_at
from meta_magic.recording.signatures.entries import Given
from meta_magic.torch_private.generator_state import GeneratorMemory, find_memory
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.snapshot import last_seeding
from meta_magic.torch_private.tensor_internals import address_of_generator
from meta_magic.trace.program import ELSEWHERE, EarlierEnd, Program, Randomness

MARK: Final = 0x6D6D << 48
"""Highest bits of every token, then 16 of the recording and 32 of the draw."""

MAGIC: Final = 0x746F6B6E
TOKEN: Final = slice(3, 6)
"""Position of a token and the magic in a CPU generator's state, in words of 64 bits:
they replace the first numbers of its Mersenne Twister, of 32 bits each."""

UNKNOWN: Final = 0


class GeneratorStream:
    """One generator while recording.

    Attributes:
        shadow: Its real state, which the token overwrites: that after the last seeding
            or real draw.
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
        """Return the token written last, if the generator's memory is unchanged."""
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


class RunningDraw:
    """How a random operator draws."""

    def __init__(self, given: Given) -> None:
        values = (*given.args, *given.kwargs.values())
        found = (v for v in values if isinstance(v, torch.Generator))
        self.generator: torch.Generator | None = next(found, None)
        device = given.kwargs.get("device")
        if device is None:
            self.is_real = not any(seen[2].is_meta for _, seen in given.inputs)
        else:
            self.is_real = device.type != "meta"


TOKEN_BITS: Final = 32
DRAW_BITS: Final = (1 << TOKEN_BITS) - 1
"""The lowest bits of a token are the number of the draw, those above the recording."""

n_recordings = 0


class Draws:
    """The draws of one recording, each with its token; a context manager.

    It ``has_gap`` if something drew from torch's default generator after an earlier
    recording, before the draws of that one were made.
    """

    def __init__(self) -> None:
        global n_recordings  # noqa: PLW0603  tokens of two recordings must differ
        n_recordings += 1
        self._base = MARK | (n_recordings & 0xFFFF) << TOKEN_BITS
        self._words = array("I")
        self._shadows: list[Tensor | None] = []
        self._made: dict[int, Tensor] = {}
        self._accelerator = tuple(
            (f"cuda:{index}", as_plain(copy_state(generator)))
            for index, generator in enumerate(torch.cuda.default_generators)
        )
        self._n_unseeded: int | None = None
        self.has_gap = False
        self._states: list[bytes | EarlierEnd] = []
        self._known: dict[int, bytes] = {}
        self._streams: dict[int, GeneratorStream] = {}
        self._default = self._open(torch.default_generator)
        self._others: dict[tuple[int, torch.device | None], GeneratorStream] = {}
        self._seed_by_kind: dict[str, int] = {}

    def __enter__(self) -> None:
        for stream in self._streams.values():
            saved = stream.saved
            if saved is not None and saved[0] == as_plain(copy_state(stream.generator)):
                stream.put(saved[1])

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values() if self._words else ():
            token = stream.read()[0]
            stream.end = self._find_source(stream)
            stream.saved = None
            state = stream.shadow
            if token is not None and stream.end and state is not None:
                if not self._is_there(stream.end):
                    state = mark(stream.generator, state)
                put_state(stream.generator, state)
                stream.saved = (as_plain(state), token)

    def keep_ends(self, program: Program) -> None:
        """Carry over the states of generators that a real run would have ended with."""
        if self._words:
            programs.append((self._base >> TOKEN_BITS, weakref.ref(program)))
        for stream in self._streams.values():
            is_default = stream is self._default
            if stream.saved is not None and not self._is_there(stream.end):
                end = EarlierEnd(program=program, source=stream.end)
                own = None if is_default else stream.generator
                keep_carried(CarriedGenerator(stream.saved[0], end, own))
            elif stream.saved is not None and is_default:
                for carried in kept:
                    carried.is_settled = True
        for (_, device), stream in self._others.items():
            if device is not None:
                elsewhere[device] = stream.generator, last_seeding()

    def note(
        self,
        op: int,
        generator: Generator | None = None,
        drawn_on: torch.device | None = None,
        *,
        is_on_meta: bool = False,
    ) -> None:
        """Record that a meta operator would have drawn now.

        A planned device, ``drawn_on``, has a generator of its own. For a tensor that is
        on meta by name a real run draws nothing. In both cases the CPU's generator is
        not advanced.
        """
        stream = self._stream_of(generator)
        if is_on_meta:
            stream = self._open_other(stream, None)
        elif drawn_on is not None and generator is None:
            stream = self._open_other(stream, drawn_on)
        source = self._find_source(stream)
        state = None if source & 1 else self._made.get(source // 2 - 1)
        if state is not None:
            self._known[source // 2 - 1] = as_plain(state)
        self._add(op, stream, source)

    @uninterrupted
    def _add(self, op: int, stream: GeneratorStream, source: int) -> None:
        draw = len(self._shadows)
        self._words.extend((op, stream.number, source))
        self._shadows.append(stream.shadow)
        if source:  # else a recording around this one has its token in the state
            stream.put(self._base | draw)

    def find_missing(self, generator: Generator | None) -> int:
        """Return the source of a generator whose draws were not made; or 0."""
        source = self._find_source(self._stream_of(generator))
        return 0 if self._is_there(source) else source

    def settle(
        self, generator: Generator, state_at: Callable[[int], Tensor | None]
    ) -> bool:
        """Set a generator to the state after all draws; return whether it is known.

        ``state_at`` returns the state at the source of a draw that was not made. A
        recording around this one keeps its own states.
        """
        stream = self._stream_of(generator)
        source = self._find_source(stream)
        if not source:
            return True
        state = stream.shadow if self._is_there(source) else state_at(source)
        if state is not None:
            put_state(stream.generator, state)
        return state is not None

    def run(
        self,
        op: int,
        generator: Generator | None,
        call: Callable[[], Any],
        state: Tensor | None,
    ) -> Any:
        """Run an operator that draws for real."""
        stream = self._stream_of(generator)
        token, before = stream.read()
        source = self._find_source(stream)
        is_made = state is not None or self._is_there(source)
        if state is not None:
            put_state(stream.generator, state)
        elif token is not None and source and stream.shadow is not None:
            put_state(stream.generator, stream.shadow)
        try:
            returned = call()
        except BaseException:
            put_state(stream.generator, before)
            raise
        token, after = stream.read()
        if token is None:
            stream.shadow = after
            if is_made and is_on_cpu(stream.generator):
                self._made[len(self._shadows)] = after
        self._add(op, stream, source if token is None else UNKNOWN)
        return returned

    def generator_at(self, device: torch.device) -> Generator:
        """Return the generator in place of the default one of a planned device."""
        return self._open_other(self._default, device).generator

    def seed_elsewhere(self, kind: str, seed: int) -> None:
        """Seed the default generators of all planned devices of a kind."""
        self._note_seed()
        self._seed_by_kind[kind] = seed
        for _, device in self._others:
            if device is not None and device.type == kind:
                self.seed_at(device, seed)

    def seed_at(self, device: torch.device, seed: int) -> None:
        """Seed the default generator of a planned device."""
        self._note_seed()
        self.generator_at(device).manual_seed(seed ^ ELSEWHERE)

    def _note_seed(self) -> None:
        """Note how many states there were before the block seeded first."""
        if self._n_unseeded is None:
            self._n_unseeded = len(self._states)

    def build_randomness(self) -> Randomness:
        """Return the record of all draws."""
        streams, others = self._streams.values(), self._others.values()
        return Randomness(
            draws=self._words.tobytes(),
            states=tuple(self._states),
            known=tuple(self._known.items()),
            generators=tuple(
                "" if stream in others else stream.device for stream in streams
            ),
            ends=tuple(stream.end for stream in streams),
            accelerator=self._accelerator,
            n_unseeded=self._n_unseeded,
        )

    def end_state(self) -> bytes | None:
        """Return the state of torch's default generator at the end of the block."""
        default = self._default
        if default.saved is None or self._is_there(default.end):
            return None
        return default.saved[0]

    def _stream_of(self, generator: Generator | None) -> GeneratorStream:
        if generator is None:
            return self._default
        known = self._streams.get(address_of_generator(generator))
        return known or self._open(generator)

    def _open(self, generator: Generator) -> GeneratorStream:
        stream = GeneratorStream(len(self._streams), generator)
        self._streams[address_of_generator(generator)] = stream
        return stream

    def _open_other(
        self, stream: GeneratorStream, device: torch.device | None
    ) -> GeneratorStream:
        """Return a second stream of a generator, for draws on another device."""
        key = (stream.number, device)
        other = self._others.get(key)
        if other is None:
            seed, generator = None, None
            if device is not None:  # seeded as the CPU's, unless seeded itself
                seed = self._seed_by_kind.get(device.type)
                generator = find_elsewhere(device) if seed is None else None
                seed = stream.generator.initial_seed() if seed is None else seed
                seed ^= ELSEWHERE
            if generator is None:
                generator = Generator()
                if seed is not None:
                    generator.manual_seed(seed)
                elif is_on_cpu(stream.generator):
                    put_state(generator, copy_state(stream.generator))
            other = self._others[key] = self._open(generator)
        return other

    def _is_there(self, source: int) -> bool:
        """Whether a generator really has the state of a source."""
        if source & 1:
            return isinstance(self._states[source // 2], bytes)
        return not source or source // 2 - 1 in self._made

    def _find_source(self, stream: GeneratorStream) -> int:
        """Return the source of a generator's state; note the state that it has."""
        draw = stream.find_token() - self._base
        if not 0 <= draw < len(self._shadows):
            token, state = stream.read()
            if token is None:
                stream.shadow = state
                plain = as_plain(state)
                found = find_carried_end(plain) or plain
                if found is plain and hash(plain) in forgotten:
                    return UNKNOWN
                if not self._states and found is plain and stream is self._default:
                    self.has_gap = was_used_since(plain)
                if not self._states or self._states[-1] != found:
                    self._states.append(found)
                return 2 * len(self._states) - 1
            draw = token - self._base
            if not 0 <= draw < len(self._shadows):
                end = find_draw(token >> TOKEN_BITS, token & DRAW_BITS)
                if end is None:
                    return UNKNOWN  # the token of a recording around this one
                if stream.shadow is None:
                    stream.shadow = state
                self._states.append(end)
                return 2 * len(self._states) - 1
        stream.shadow = self._shadows[draw]
        return 2 * draw + 2
