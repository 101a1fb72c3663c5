"""Set generators to their state before each draw; skip draws that nobody needs.

``torch.randn(10**9); x = torch.randn(2)``: to compute ``x``, the generator must be
advanced by as many words as the first call draws. Where :func:`count_words` knows this
number, the generator is advanced without drawing; else :func:`split_draw` draws in
little memory. Read :class:`Streams` first.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Final, NamedTuple

import torch
from torch import Generator, Tensor

from meta_magic.errors import ReplayError
from meta_magic.replaying.kept import Kept
from meta_magic.replaying.operators import DRAWN, default_generator, is_dense
from meta_magic.replaying.program_calls import Call, Draw, draw_before, state_before
from meta_magic.torch_private.generator_state import N, advance, count_taken, jump
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.program import ELSEWHERE, EarlierEnd, Randomness
from meta_magic.trace.signature import CPU, Geometry

StateOn = Callable[[str], Tensor | None]
"""Returns the state of a generator on a device, or None if it is not known."""


class Streams:
    """A generator for each one that a program used; torch's own are not touched.

    Attributes:
        given: By state, that of a generator at the end of an earlier recording.

    Args:
        kept: Has the states that earlier replays kept.
        keeps: Whether the state after each draw is kept for later ones.
    """

    def __init__(
        self,
        randomness: Randomness,
        draws: Sequence[Draw],
        sources: Collection[int],
        device: torch.device,
        kept: Kept | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._randomness = randomness
        self._known = dict(randomness.known)
        self._device = device
        self._generators: dict[tuple[int, str], Generator] = {}
        self._sources: dict[int, int] = {}
        self._skipped: dict[int, tuple[Generator, int]] = {}
        self._saved: dict[int, dict[str, Tensor]] = {}
        self.given: dict[int, StateOn] = {}
        self._kept, self._keeps = kept, keeps
        self._returned_to = find_returns(draws) | {*sources}

    def update(self, randomness: Randomness) -> None:
        """Go on with a later state of the same program."""
        self._randomness = randomness
        self._known = dict(randomness.known)

    def can_reach(self, draw: Draw) -> bool:
        """Whether a draw is from a CPU generator whose state before it is known."""
        source = draw.source
        if not source or self._randomness.generators[draw.generator] not in ("", "cpu"):
            return False
        is_there = self._sources.get(draw.generator) == source
        return is_there or self.state_at(source) is not None

    def ends(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield each CPU generator, its last draw, and the state after that."""
        for (number, device), generator in self._generators.items():
            last = draw_before(self._sources.get(number, 0))
            if device == "cpu" and last is not None:
                self._advance_skipped(number)
                yield number, last, generator.get_state()

    def prepare(self, draw: Draw, device: torch.device, n_words: int = 0) -> Generator:
        """Return the generator of a draw, past the first ``n_words`` words of it."""
        generator = self._open_at(draw, device)
        self._skip_words(draw, generator, n_words)
        self._advance_skipped(draw.generator)
        return generator

    def skip(self, draw: Draw, device: torch.device, n_words: int) -> None:
        """Skip ``n_words`` words: all of a draw, or those at its end."""
        self._skip_words(draw, self._open_at(draw, device), n_words)
        self.note(draw)

    def _skip_words(self, draw: Draw, generator: Generator, n_words: int) -> None:
        _, before = self._skipped.get(draw.generator, (generator, 0))
        self._skipped[draw.generator] = generator, before + n_words

    def _advance_skipped(self, number: int) -> None:
        if number in self._skipped:
            advance(*self._skipped.pop(number))

    def _open_at(self, draw: Draw, device: torch.device) -> Generator:
        """Return the generator of a draw; skipped words may still be due."""
        kind = self._randomness.generators[draw.generator]
        is_own = draw.generator and kind
        is_elsewhere = is_own and torch.device(kind).type != device.type
        if is_elsewhere and not self._replaces_device(draw, device):
            raise ReplayError(
                f"the recording draws from a generator on {kind}, which does not work "
                f"on {device}: give the cell a generator on that device"
            )
        key = (draw.generator, str(device))
        generator = self._generators.get(key)
        if generator is None:
            generator = self._generators[key] = Generator(device)
            self._sources.pop(draw.generator, None)  # the new one has no state yet
        if self._sources.get(draw.generator) != draw.source:
            self._return_to(draw)
        return generator

    def _replaces_device(self, draw: Draw, device: torch.device) -> bool:
        """Whether a CPU generator replaced that of a device that the machine lacks."""
        if device.type != "cpu" or (draw.generator, str(device)) in self._generators:
            return device.type == "cpu"
        state = self.state_at(draw.source)
        own = default_generator(device).get_state()
        return state is not None and state.shape == own.shape

    def note(self, draw: Draw) -> None:
        """Note that a draw was made."""
        self._sources[draw.generator] = draw.end
        if self._keeps or draw.end in self._returned_to:
            self._advance_skipped(draw.generator)
            self._saved[draw.number] = {
                device: generator.get_state()
                for (number, device), generator in self._generators.items()
                if number == draw.generator
            }

    def saved_states(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each draw with the saved state after it, for CPU generators."""
        for draw, states in self._saved.items():
            if states.keys() == {"cpu"}:
                yield draw, states["cpu"]

    def state_at(self, source: int, device: str = "cpu") -> Tensor | None:
        """Return the state of a generator on a device at ``source``, or None."""
        draw, number = draw_before(source), state_before(source)
        if number is not None and number in self.given:
            return self.given[number](device)
        saved = None if draw is None else self._saved.get(draw, {}).get(device)
        if saved is not None or device != "cpu":
            return saved
        state: bytes | EarlierEnd | None = None
        if number is not None:
            state = self._randomness.states[number]
        elif draw is not None:
            state = self._known.get(draw)
        if isinstance(state, bytes):
            return read_state(state)
        if draw is None or self._kept is None:
            return None
        return self._kept.state_after(draw)

    def _return_to(self, draw: Draw) -> None:
        source, recorded = draw.source, state_before(draw.source)
        self._advance_skipped(draw.generator)
        for (number, device), generator in self._generators.items():
            if number != draw.generator:
                continue
            state = self.state_at(source, device)
            if state is not None:
                generator.set_state(state)
            elif recorded is not None:
                self._set(generator, number, recorded)
        self._sources[draw.generator] = source

    def _set(self, generator: Generator, number: int, state: int) -> None:
        """Set an accelerator's generator to the state that matches a CPU state."""
        randomness = self._randomness
        recorded, n_unseeded = randomness.states[state], randomness.n_unseeded
        known = dict(randomness.accelerator).get(str(generator.device))
        is_planned = not randomness.generators[number]
        is_default = not number or is_planned
        like = Generator()
        if isinstance(recorded, bytes):
            like.set_state(read_state(recorded))
        seed = like.initial_seed()
        is_from_start = n_unseeded is None or state < n_unseeded
        if is_default and is_from_start and known is not None:
            generator.set_state(read_state(known))
        elif recorded == like.manual_seed(seed).get_state().numpy().tobytes():
            generator.manual_seed(seed ^ ELSEWHERE if is_planned else seed)
        elif is_default:
            generator.set_state(default_generator(generator.device).get_state())
        else:
            raise ReplayError(
                "the cell set the CPU's generator to a state that is not the start of "
                f"a seed: no state of a generator on {generator.device} corresponds"
            )


def find_returns(draws: Iterable[Draw]) -> set[int]:
    """Return the sources that a generator is set back to: their states are saved."""
    sources: dict[int, int] = {}
    returns = set()
    for draw in draws:
        if sources.get(draw.generator) != draw.source:
            returns.add(draw.source)
        sources[draw.generator] = draw.end
    return returns


frombuffer = torch.frombuffer  # which a recording replaces


def read_state(state: bytes) -> Tensor:
    """Return a generator state as torch takes it."""
    return frombuffer(bytearray(state), dtype=torch.uint8)


NAMES: Final = """
normal_.default uniform_.default random_.default random_.from random_.to
exponential_.default cauchy_.default geometric_.default bernoulli_.float
"""
LINEAR: Final = DRAWN.keys() | {f"aten.{name}" for name in NAMES.split()}
"""Operators that draw equally many words for each further 16 elements. Not
``log_normal_``, which caches a number for the next call, nor rejection sampling."""

GROUP: Final = 16
"""Elements below which ``normal_`` draws in another way, and caches a number."""

LARGER: Final = (9 * GROUP, 2**12, 2**16)
"""Further counts of elements by which a measured count is confirmed."""

MAX_COUNTS: Final = 2**9
"""The most counts to keep: noise with another scale at each step adds one a step."""

MUCH: Final = 2**16  # elements from which on a measurement pays; it takes 2 ms

MAX_DRAWN: Final = 2**20  # numbers that are drawn at a time, to be thrown away


class Count(NamedTuple):
    """Words that are drawn for one group and a rest, and for each further group."""

    first: int
    more: int


counts: dict[object, Count | None] = {}


PARTED: Final = frozenset({"aten.uniform_.default", "aten.normal_.default"})
"""Operators that draw the same numbers for a part of their elements as for all."""


def find_part(call: Call, first: int, end: int, device: torch.device) -> range | None:
    """Return the elements to draw if only some are needed; None if that is no use.

    Whole groups; of ``normal_`` the last group overlaps with the one before.
    """
    numel = prod(call.drawn.shape)
    first -= first % GROUP
    end += -end % GROUP
    end = numel if end > numel - GROUP else end
    first = min(first, max(0, end - GROUP))
    is_use = call.operator.name in PARTED and numel >= MUCH and end - first < numel
    is_use = is_use and not call.drawn.storage_offset
    is_known = is_use and count_words(call, device) is not None
    return range(first, end) if is_known else None


def count_words(
    call: Call, device: torch.device, numel: int | None = None
) -> int | None:
    """Return how many words of 32 bits a call draws on the CPU; None if not certain.

    ``numel`` asks for a part of the elements: at least 16, and as many beyond whole
    groups as the call has.

    The count is measured in this process: another build of torch may draw otherwise.
    The listed operators draw for one element after the other, or for groups of 16.

    Source: ``ATen/native/cpu/DistributionTemplates.h``.
    """
    is_listed = call.operator.name in LINEAR or never_rejects(call)
    if not is_listed or call.device_on(device).type != "cpu":
        return None
    geometry = call.drawn
    numel = math.prod(geometry.shape) if numel is None else numel
    if numel < GROUP or not (is_in_order(geometry) and can_advance()):
        return None
    n_groups, rest = divmod(numel, GROUP)
    given = [a for a in call.signature.arguments if a[0] not in ("size", "generator")]
    key = (call.operator.name, repr(given), geometry.dtype, rest)
    if key not in counts:
        if len(counts) >= MAX_COUNTS:
            if numel < MUCH:
                return None
            counts.pop(next(iter(counts)), None)
        counts[key] = measure_words(call, rest)
    count = counts[key]
    return None if count is None else count.first + (n_groups - 1) * count.more


def never_rejects(call: Call) -> bool:
    """Whether a call is a ``trunc_normal_`` whose bounds no number can exceed.

    ``normal_`` makes of a uniform number of 53 bits below 1 a number that is at most
    sqrt(-2 log 2^-53) = 8.6 standard deviations from the mean.
    """
    if call.operator.name != "nn.init.trunc_normal_":
        return False
    given = dict(call.signature.arguments)
    numbers = [given[name] for name in ("mean", "std", "a", "b")]
    mean, std, low, high = (n if isinstance(n, float) else math.nan for n in numbers)
    is_exact = abs(mean) <= 100 * std  # else rounding may exceed the margin
    return is_exact and low <= mean - 10 * std and mean + 10 * std <= high


def measure_words(call: Call, rest: int) -> Count | None:
    """Return how many words such calls of any size draw; None without a rule."""
    try:
        with RealTorch():
            first, second = (find_words(call, n * GROUP + rest) for n in (1, 2))
            if first is None or second is None:
                return None
            count = Count(first, second - first)
            for n in LARGER:
                before, after = draw_once(call, n + rest, has_number=True)
                n_words = count.first + (n // GROUP - 1) * count.more
                if not is_after(after, before, n_words):
                    return None
    except (RuntimeError, LookupError, TypeError, ValueError):
        return None  # the replay makes the call, and reports its error
    return count


def find_words(call: Call, numel: int) -> int | None:
    """Return how many words a call draws; None if it changes more of a generator."""
    found = set()
    for has_number in (False, True):
        before, after = draw_once(call, numel, has_number=has_number)
        n = ((count_taken(after) or 0) - (count_taken(before) or 0)) % N
        found.add(n if is_after(after, before, n) else None)
    return found.pop() if len(found) == 1 else None


def draw_once(call: Call, numel: int, *, has_number: bool) -> tuple[Tensor, Tensor]:
    """Draw for ``numel`` elements; return a generator's state before and after."""
    generator = Generator().manual_seed(numel)
    if has_number:
        torch.empty(1).normal_(generator=generator)
    before = generator.get_state()
    tensor = torch.empty(numel, dtype=call.drawn.dtype)
    call.operator.call(call.usage.arguments, [tensor], CPU, generator)
    return before, generator.get_state()


@cache
def can_advance() -> bool:
    """Whether this torch draws one word for each element of ``uniform_``, as known."""
    with RealTorch():
        n_blocks, generator = 100, Generator().manual_seed(0)
        before = generator.get_state()
        if count_taken(before) is None:
            return False
        torch.empty(n_blocks * N + 9, dtype=torch.float32).uniform_(generator=generator)
        return is_after(generator.get_state(), jump(before, n_blocks), 9)


def is_after(state: Tensor, before: Tensor, n_words: int) -> bool:
    """Whether a state of a CPU generator is the one that follows after some words."""
    generator = Generator()
    generator.set_state(before)
    advance(generator, n_words)
    return torch.equal(generator.get_state(), state)


def split_draw(call: Call) -> list[int]:
    """Return the counts of elements to draw one after the other, in little memory."""
    geometry = call.drawn
    if not (call.operator.can_split and is_in_order(geometry)):
        return []
    whole, rest = divmod(prod(geometry.shape), MAX_DRAWN)
    pieces = [MAX_DRAWN] * whole
    if 0 < rest < GROUP and pieces:
        pieces[-1] += rest  # normal_ draws in another way below 16 elements
    elif rest:
        pieces.append(rest)
    return pieces


def is_in_order(geometry: Geometry) -> bool:
    """Whether elements are in memory in their order, without gaps."""
    strides = list(geometry.stride or ())
    return is_dense(geometry) and strides == sorted(strides, reverse=True)
