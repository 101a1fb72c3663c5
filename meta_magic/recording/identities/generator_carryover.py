"""Carry the states of generators over from one recording to the next.

On meta ``torch.randn(2)`` does not advance a generator: the next recording would find
the same state, and draw the same numbers again. So a recording writes a *mark* into the
state. If the next one finds it, nothing drew or seeded in between.

The mark is in the first word of the Mersenne Twister. Only the highest bit of that word
decides numbers still to be drawn: the recurrence takes the upper bit of each word and
the lower bits of the next one, and the word itself was drawn already.
"""

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.snapshot import last_seeding
from meta_magic.torch_private.tensor_internals import address_of_generator, count_owners
from meta_magic.trace.program import EarlierEnd, Program

OWN_DEVICE: Final[Any] = Generator.device

# Each operator gets the generator in a new wrapper: its address identifies it.
named: dict[int, tuple["weakref.ref[Generator]", torch.device]] = {}


def name_generator(generator: Generator, device: torch.device) -> None:
    """Note the planned device of a generator."""
    for address in [at for at, (ref, _) in named.items() if ref() is None]:
        del named[address]
    named[address_of_generator(generator)] = weakref.ref(generator), device


def planned_device_of(generator: Generator) -> torch.device:
    """Return the planned device of a generator; its own if it has none."""
    found = named.get(address_of_generator(generator)) if named else None
    if found is None or found[0]() is None:
        own: torch.device = OWN_DEVICE.__get__(generator)
        return own
    return found[1]


def is_named(generator: Generator) -> bool:
    """Whether a generator has another planned device than its own."""
    own: torch.device = OWN_DEVICE.__get__(generator)
    return planned_device_of(generator) != own


def is_on_cpu(generator: Generator) -> bool:
    """Whether a generator is really on the CPU."""
    return bool(OWN_DEVICE.__get__(generator).type == "cpu")


def check_generator(generator: Generator, device: torch.device | None) -> None:
    """Refuse a generator for a tensor that is planned on another kind of device."""
    kind = planned_device_of(generator).type
    if device is not None and device.type != kind:
        raise RuntimeError(
            f"Expected a '{device.type}' device type for generator but found '{kind}'"
        )


FIRST_WORD: Final = 3
"""Position of the Twister's first word in a CPU generator's state, in 64-bit words."""

FIRST: Final = slice(FIRST_WORD * 8, FIRST_WORD * 8 + 8)
TWISTER: Final = slice(FIRST_WORD * 8 + 8, (FIRST_WORD + 624) * 8)
"""Bytes of that word, and of the others, which are made anew after 624 numbers."""

SEED: Final = slice(0, 8)  # bytes of that state which hold the seed

HIGHEST_BIT: Final = 1 << 31
MAX_KEPT: Final = 8
"""Carried states, each of which keeps a recording alive, beside the latest one of each
generator that the user holds."""

MAX_KNOWN: Final = 256

numbers = count(1)


@dataclass(eq=False)
class CarriedGenerator:
    """The state of a generator at the end of a recording.

    Attributes:
        state: Its state, with the mark.
        end: Its state after the draws of the recording.
        own: The user's generator, held as nothing else may hold its Python object;
            None for torch's own.
        is_settled: Whether a later recording moved the default generator to ``end``.
    """

    state: bytes
    end: EarlierEnd
    own: Generator | None
    is_settled: bool = False


kept: list[CarriedGenerator] = []
forgotten: set[int] = set()
"""Hashes of carried states that are kept no more: what they lead to is not known."""

elsewhere: dict[torch.device, tuple[Generator, tuple[object, ...]]] = {}
"""By planned device, the generator in its place, and the last seeding at that time."""

programs: "deque[tuple[int, weakref.ref[Program]]]" = deque(maxlen=MAX_KNOWN)


def keep_carried(carried: CarriedGenerator) -> None:
    """Keep the state of a generator; forget old ones that nobody needs."""
    kept.append(carried)
    own = ((carried, carried.own) for carried in kept if carried.own is not None)
    latest = {address_of_generator(g): one for one, g in own if is_held(g)}
    spare = [one for one in kept if one not in latest.values()]
    for old in spare[:-MAX_KEPT]:
        kept.remove(old)
        forgotten.add(hash(old.state))


def is_held(generator: Generator) -> bool:
    """Whether anything but carried states holds a generator."""
    address = address_of_generator(generator)
    own = (carried.own for carried in kept if carried.own is not None)
    wrappers = {id(other) for other in own if address_of_generator(other) == address}
    return count_owners(address) >= len(wrappers)


def find_carried_end(state: bytes) -> EarlierEnd | None:
    """Return the end of the recording that carried over a state; None if none did."""
    return next((carried.end for carried in kept if carried.state == state), None)


def find_elsewhere(device: torch.device) -> Generator | None:
    """Return the generator that an earlier recording used for a planned device."""
    generator, seeding = elsewhere.get(device, (None, ()))
    return generator if seeding == last_seeding() else None


def find_draw(number: int, draw: int) -> EarlierEnd | None:
    """Return the state after a draw of an earlier recording, by its number."""
    known = next((program() for n, program in programs if n == number), None)
    return None if known is None else EarlierEnd(program=known, source=2 * draw + 2)


def forget_carried(program: Program) -> None:
    """Drop the carried state of torch's default generator, which was advanced."""
    for carried in [*kept]:
        if carried.own is None and carried.end.program is program:
            kept.remove(carried)


def list_own() -> Iterator[CarriedGenerator]:
    """Yield the carried states of the user's generators, as far as they are in them."""
    for carried in [*kept]:
        own = carried.own
        if own is not None and dump_state(own.get_state()) == carried.state:
            yield carried


def was_used_since(state: bytes) -> bool:
    """Whether something drew from torch's generator since the last recording."""
    last = next((carried for carried in reversed(kept) if carried.own is None), None)
    if last is None or last.is_settled or state == last.state:
        return False
    # Draws keep the mark: without it somebody set this state since then.
    is_marked = state[FIRST] == last.state[FIRST]
    is_unmarked = state[TWISTER] == last.state[TWISTER] and not is_marked
    if state[SEED] != last.state[SEED] or is_unmarked:
        return False
    with DisableTorchFunction(), DisableTorchDispatch():
        seeded = Generator().manual_seed(int.from_bytes(state[SEED], "little"))
        return dump_state(seeded.get_state()) != state


def dump_state(state: Tensor) -> bytes:
    """Return a state as plain data."""
    return state.numpy().tobytes()


def mark_state(state: Tensor) -> Tensor:
    """Return the state of a CPU generator with a mark that no other one has."""
    marked = state.clone()
    words = marked.numpy().view(np.uint64)
    # These bytes also hold the seed: the mark is a seed that hardly anybody chooses.
    mark = 0x4D600000 | next(numbers) & 0xFFFFF
    words[FIRST_WORD] = int(words[FIRST_WORD]) & HIGHEST_BIT | mark
    return marked
