"""Put generators where each draw of a program began."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Generator

from meta_magic.errors import ReplayError
from meta_magic.replaying.operators import default_generator
from meta_magic.replaying.program_calls import Draw
from meta_magic.trace.program import Randomness

__all__ = ["Streams"]

States = tuple[torch.Tensor, ...]


class Streams:
    """Generators of our own for each one that a program used; torch's are not touched.

    Args:
        randomness: What the program used.
        draws: The draws to be made, in order.
        end: Where torch's default generator is to stand afterwards, or None.
        device: What stands for meta.
    """

    def __init__(
        self,
        randomness: Randomness,
        draws: Sequence[Draw],
        end: int | None,
        device: torch.device,
    ) -> None:
        self._randomness = randomness
        self._device = device
        self._generators: dict[tuple[int, str], Generator] = {}
        self._stands: dict[int, int] = {}
        self._saved: dict[int, dict[str, torch.Tensor]] = {}
        self._returned_to = find_returns(draws, end)

    def prepare(self, draw: Draw, device: torch.device) -> Generator:
        """Return the generator of a draw on ``device``, where the draw began."""
        kind = self._randomness.generators[draw.generator]
        if draw.generator and torch.device(kind).type != device.type:
            raise ReplayError(
                f"the recording draws from a generator on {kind}, which does not work "
                f"on {device}: give the cell a generator on that device"
            )
        generator = self._open(draw.generator, device)
        if self._stands.get(draw.generator) != draw.source:
            self._return_to(draw)
        return generator

    def note(self, draw: Draw) -> None:
        """Note that a draw was made."""
        self._stands[draw.generator] = source = 2 * draw.number + 2
        if source in self._returned_to:
            self._saved[source] = {
                device: generator.get_state()
                for (number, device), generator in self._generators.items()
                if number == draw.generator
            }

    def state_at(self, source: int) -> torch.Tensor | None:
        """Return the state of torch's default CPU generator at ``source``, if known."""
        if source & 1:
            return read_state(self._randomness.states[source // 2])
        if self._stands.get(0) == source:
            generator = self._generators.get((0, "cpu"))
            return None if generator is None else generator.get_state()
        return self._saved.get(source, {}).get("cpu")

    def _open(self, number: int, device: torch.device) -> Generator:
        key = (number, str(device))
        generator = self._generators.get(key)
        if generator is None:
            generator = self._generators[key] = Generator(device)
            self._stands.pop(number, None)  # the new one must be put there, too
        return generator

    def _return_to(self, draw: Draw) -> None:
        source = draw.source
        for (number, device), generator in self._generators.items():
            if number != draw.generator:
                continue
            if source & 1:
                self._set(generator, source // 2)
            else:
                state = self._saved.get(source, {}).get(device)
                if state is not None:
                    generator.set_state(state)
        self._stands[draw.generator] = source

    def _set(self, generator: Generator, number: int) -> None:
        """Put a generator into a recorded state, or what corresponds to it."""
        state = read_state(self._randomness.states[number])
        if generator.device.type == "cpu":
            generator.set_state(state)
            return
        device = str(generator.device)
        known = dict(self._randomness.accelerator).get(device)
        like = Generator()
        like.set_state(state)
        seed = like.initial_seed()
        if number == 0 and known is not None:
            generator.set_state(read_state(known))
        elif torch.equal(like.manual_seed(seed).get_state(), state):
            generator.manual_seed(seed)
        elif number == 0:
            generator.set_state(default_generator(generator.device).get_state())
        else:
            raise ReplayError(
                "the cell put the CPU's generator into a state that no seed leads to "
                f"directly, and {device} has none that corresponds to it"
            )


def find_returns(draws: Iterable[Draw], end: int | None) -> set[int]:
    """Return the sources to which a generator is set back after it went on."""
    stands: dict[int, int] = {}
    returns = set()
    for draw in draws:
        if stands.get(draw.generator) != draw.source:
            returns.add(draw.source)
        stands[draw.generator] = 2 * draw.number + 2
    if end is not None and stands.get(0) != end:
        returns.add(end)
    return returns


def read_state(state: bytes) -> torch.Tensor:
    """Return a generator state as torch takes it."""
    return torch.from_numpy(np.frombuffer(state, dtype=np.uint8).copy())
