"""Put generators where each draw of a program began."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.errors import ReplayError
from meta_magic.replaying.kept import Kept
from meta_magic.replaying.operators import default_generator
from meta_magic.replaying.program_draws import Draw
from meta_magic.replaying.word_counts import go_on
from meta_magic.trace.program import EarlierEnd, Randomness

__all__ = ["Streams"]

StateOn = Callable[[str], Tensor | None]
"""Returns the state of a generator on a device, if it is known there."""


class Streams:
    """Generators of our own for each one that a program used; torch's are not touched.

    Args:
        randomness: What the program used.
        draws: The draws to be made, in order.
        sources: Those at which :meth:`state_at` will be asked.
        device: What stands for meta.
    """

    def __init__(
        self,
        randomness: Randomness,
        draws: Sequence[Draw],
        sources: Collection[int],
        device: torch.device,
    ) -> None:
        self._randomness = randomness
        self._device = device
        self._generators: dict[tuple[int, str], Generator] = {}
        self._stands: dict[int, int] = {}
        self._skipped: dict[int, tuple[Generator, int]] = {}
        self._saved: dict[int, dict[str, Tensor]] = {}
        self._given: dict[int, StateOn] = {}
        self._kept: Kept | None = None
        self._keeps = False
        self._known = {2 * draw + 2: state for draw, state in randomness.known}
        self._returned_to = find_returns(draws) | {*sources}

    def go_on_with(self, randomness: Randomness) -> None:
        """Take in what the program used since."""
        self._randomness = randomness
        self._known = {2 * draw + 2: state for draw, state in randomness.known}

    def can_reach(self, draw: Draw) -> bool:
        """Whether a draw is from a generator of the CPU, and its start is known."""
        source = draw.source
        if not source or self._randomness.generators[draw.generator] not in ("", "cpu"):
            return False
        is_there = self._stands.get(draw.generator) == source
        return is_there or self.state_at(source) is not None

    def ends(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield each generator of the CPU, its last draw, and the state after it."""
        for (number, device), generator in self._generators.items():
            source = self._stands.get(number, 1)
            if device == "cpu" and not source & 1:
                self._make_up(number)
                yield number, source // 2 - 1, generator.get_state()

    def prepare(self, draw: Draw, device: torch.device) -> Generator:
        """Return the generator of a draw on ``device``, where the draw began."""
        generator = self._bring(draw, device)
        self._make_up(draw.generator)
        return generator

    def skip(self, draw: Draw, device: torch.device, n_words: int) -> None:
        """Note that a draw need not be made, of which its words are known.

        They are made up for when somebody asks for the generator.
        """
        generator = self._bring(draw, device)
        _, before = self._skipped.get(draw.generator, (generator, 0))
        self._skipped[draw.generator] = generator, before + n_words
        self.note(draw)

    def _make_up(self, number: int) -> None:
        """Let a generator of the CPU go on by what was skipped."""
        if number in self._skipped:
            go_on(*self._skipped.pop(number))

    def _bring(self, draw: Draw, device: torch.device) -> Generator:
        """Return the generator of a draw, where that began but for what was skipped."""
        kind = self._randomness.generators[draw.generator]
        is_own = draw.generator and kind
        is_elsewhere = is_own and torch.device(kind).type != device.type
        if is_elsewhere and not self._is_stand_in(draw, device):
            raise ReplayError(
                f"the recording draws from a generator on {kind}, which does not work "
                f"on {device}: give the cell a generator on that device"
            )
        generator = self._open(draw.generator, device)
        if self._stands.get(draw.generator) != draw.source:
            self._return_to(draw)
        return generator

    def _is_stand_in(self, draw: Draw, device: torch.device) -> bool:
        """Whether a generator of the CPU stood for one of a device that was not there.

        Then it has states of the CPU's; what is drawn from it is not what that draws.
        """
        if device.type != "cpu" or (draw.generator, str(device)) in self._generators:
            return device.type == "cpu"
        state = self.state_at(draw.source)
        own = default_generator(device).get_state()
        return state is not None and state.shape == own.shape

    def note(self, draw: Draw) -> None:
        """Note that a draw was made."""
        self._stands[draw.generator] = source = 2 * draw.number + 2
        if self._keeps or source in self._returned_to:
            self._make_up(draw.generator)
            self._saved[source] = {
                device: generator.get_state()
                for (number, device), generator in self._generators.items()
                if number == draw.generator
            }

    def go_on_from(self, kept: Kept | None, *, keeps: bool) -> None:
        """Take in what earlier replays know of the CPU's generators.

        Args:
            kept: That, and what else they left.
            keeps: Whether later ones are to know more.
        """
        self._kept, self._keeps = kept, keeps

    def saved_states(self) -> Iterator[tuple[int, Tensor]]:
        """Yield draws after which a state was saved, and that, if it is the CPU's."""
        for source, states in self._saved.items():
            if states.keys() == {"cpu"}:
                yield source // 2 - 1, states["cpu"]

    def give(self, state: int, told: StateOn) -> None:
        """Take in where an earlier recording brought a generator.

        Args:
            state: The number of that state here.
            told: Returns it on a device.
        """
        self._given[state] = told

    def state_at(self, source: int, device: str = "cpu") -> Tensor | None:
        """Return the state of a generator on a device at ``source``, if known."""
        if source & 1:
            return self._read_state(source // 2, device)
        saved = self._saved.get(source, {}).get(device)
        if saved is None and device == "cpu" and source in self._known:
            return read_state(self._known[source])
        if saved is None and device == "cpu" and self._kept is not None:
            return self._kept.state_after(source // 2 - 1)
        return saved

    def _read_state(self, number: int, device: str) -> Tensor | None:
        """Return a recorded state, or that at which an earlier recording ended."""
        if number in self._given:
            return self._given[number](device)
        state = self._randomness.states[number]
        if device != "cpu" or isinstance(state, EarlierEnd):
            return None
        return read_state(state)

    def _open(self, number: int, device: torch.device) -> Generator:
        key = (number, str(device))
        generator = self._generators.get(key)
        if generator is None:
            generator = self._generators[key] = Generator(device)
            self._stands.pop(number, None)  # the new one must be put there, too
        return generator

    def _return_to(self, draw: Draw) -> None:
        source = draw.source
        self._make_up(draw.generator)
        for (number, device), generator in self._generators.items():
            if number != draw.generator:
                continue
            state = self.state_at(source, device)
            if state is not None:
                generator.set_state(state)
            elif source & 1:
                self._set(generator, number, source // 2)
        self._stands[draw.generator] = source

    def _set(self, generator: Generator, number: int, state: int) -> None:
        """Put a generator of a device into what corresponds to a state of the CPU's."""
        recorded = self._randomness.states[state]
        known = dict(self._randomness.accelerator).get(str(generator.device))
        is_default = not number or not self._randomness.generators[number]
        like = Generator()
        if isinstance(recorded, bytes):
            like.set_state(read_state(recorded))
        seed = like.initial_seed()
        if is_default and known is not None:
            generator.set_state(read_state(known))
        elif recorded == like.manual_seed(seed).get_state().numpy().tobytes():
            generator.manual_seed(seed)
        elif is_default:
            generator.set_state(default_generator(generator.device).get_state())
        else:
            raise ReplayError(
                "the cell put the CPU's generator into a state that no seed leads to "
                f"directly, and {generator.device} has none that corresponds to it"
            )


def find_returns(draws: Iterable[Draw]) -> set[int]:
    """Return the sources to which a generator is set back after it went on."""
    stands: dict[int, int] = {}
    returns = set()
    for draw in draws:
        if stands.get(draw.generator) != draw.source:
            returns.add(draw.source)
        stands[draw.generator] = 2 * draw.number + 2
    return returns


def read_state(state: bytes) -> Tensor:
    """Return a generator state as torch takes it."""
    return torch.from_numpy(np.frombuffer(state, dtype=np.uint8).copy())
