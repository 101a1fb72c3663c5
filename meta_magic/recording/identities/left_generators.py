"""Remember where recordings left generators whose draws they did not make.

Meta moves no generator: the next recording finds one where the last one found it, and
would draw the same numbers again. On the CPU it would go on. So a generator that a
recording leaves carries a *mark* in its state, by which the next recording knows that
nothing drew from it, and nothing seeded it, in between.

The mark stands in the first word of the Mersenne Twister, of whose bits only the
highest decides any number that is still to be drawn: the recurrence takes the upper bit
of each word and the lower ones of the next, and the word itself was drawn already.
"""

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import torch
from torch import Generator, Tensor

from meta_magic.torch_private.backend_flags import last_seeding
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.program import EarlierEnd, Program

__all__ = [
    "LeftGenerator",
    "find_draw",
    "find_elsewhere",
    "find_left",
    "forget_left",
    "keep_elsewhere",
    "keep_left",
    "keep_program",
    "mark_state",
    "move_own",
    "settle_default",
    "was_used_since",
]

FIRST_WORD: Final = 3
"""Where in a CPU generator's state, as words of 64 bits, the Twister's first stands."""

FIRST: Final = slice(FIRST_WORD * 8, FIRST_WORD * 8 + 8)
TWISTER: Final = slice(FIRST_WORD * 8 + 8, (FIRST_WORD + 624) * 8)
"""Bytes of that word, and of the others, which are made anew after 624 numbers."""

SEED: Final = slice(0, 8)
"""Bytes of that state which hold the seed."""

HIGHEST_BIT: Final = 1 << 31
MAX_KEPT: Final = 8
"""Each keeps a recording alive."""

MAX_KNOWN: Final = 256

numbers = count(1)


@dataclass(eq=False)
class LeftGenerator:
    """A generator as a recording left it.

    Attributes:
        state: Its state, with the mark.
        end: Where it would stand, had the draws been made.
        own: The generator, if it is one of the user's; None for torch's default. Not
            weakly: operators are given it in a wrapper of their own, gone at once.
        is_settled: Whether a recording since then left the default where it belongs.
    """

    state: bytes
    end: EarlierEnd
    own: Generator | None
    is_settled: bool = False


kept: deque[LeftGenerator] = deque(maxlen=MAX_KEPT)
elsewhere: dict[torch.device, tuple[Generator, tuple[object, ...]]] = {}
"""What stands for the generators of devices, and which seeding was the last then."""

programs: "deque[tuple[int, weakref.ref[Program]]]" = deque(maxlen=MAX_KNOWN)


def keep_left(left: LeftGenerator) -> None:
    """Remember how a recording left a generator."""
    kept.append(left)


def find_left(state: bytes) -> EarlierEnd | None:
    """Return where a generator in this state would stand, if a recording left it so."""
    return next((left.end for left in kept if left.state == state), None)


def keep_elsewhere(device: torch.device, generator: Generator) -> None:
    """Remember what stands for the generator of a device that is not there."""
    elsewhere[device] = generator, last_seeding()


def find_elsewhere(device: torch.device) -> Generator | None:
    """Return what stood for the generator of a device in an earlier recording.

    None if all generators were seeded since.
    """
    generator, seeding = elsewhere.get(device, (None, ()))
    return generator if seeding == last_seeding() else None


def keep_program(number: int, program: Program) -> None:
    """Remember a recording, while it is there, by the number that its tokens carry."""
    programs.append((number, weakref.ref(program)))


def find_draw(number: int, draw: int) -> EarlierEnd | None:
    """Return where a draw of an earlier recording ended, by that number.

    Its token is met again where code of the user's, or checkpointing, kept a state.
    """
    known = next((program() for n, program in programs if n == number), None)
    return None if known is None else EarlierEnd(program=known, source=2 * draw + 2)


def forget_left(program: Program) -> None:
    """Forget how a recording left torch's default generator: that was moved on."""
    for left in [*kept]:
        if left.own is None and left.end.program is program:
            kept.remove(left)


def move_own(program: Program, state_at: Callable[[int], Tensor | None]) -> bool:
    """Let the user's generators go on from where a recording would have left them.

    Those that still stand where it left them, and all of whose draws were made.

    Args:
        program: What was recorded.
        state_at: Returns where a generator came to, by the source there; None if it
            did not come there.

    Returns:
        Whether none was left where it was, for want of some of its draws.
    """
    are_all_moved = True
    for left in [*kept]:
        generator = left.own
        if generator is None or left.end.program is not program:
            continue
        if as_bytes(generator.get_state()) != left.state:
            continue
        state = state_at(left.end.source)
        if state is None:
            are_all_moved = False
        else:
            generator.set_state(state)
            kept.remove(left)
    return are_all_moved


def settle_default() -> None:
    """Note that a recording left torch's default generator where it really stands."""
    for left in kept:
        left.is_settled = True


def was_used_since(state: bytes) -> bool:
    """Whether something drew from torch's default generator since the last recording.

    Seeding it makes no difference to what is drawn after that, and is no use.

    Args:
        state: The state in which it is found.
    """
    last = next((left for left in reversed(kept) if left.own is None), None)
    if last is None or last.is_settled or state == last.state:
        return False
    if state[SEED] != last.state[SEED] or is_unmarked(state, last.state):
        return False
    with DisableTorchFunction(), DisableTorchDispatch():
        seeded = Generator().manual_seed(int.from_bytes(state[SEED], "little"))
        return as_bytes(seeded.get_state()) != state


def is_unmarked(state: bytes, marked: bytes) -> bool:
    """Whether a state is that of numbers drawn where one was marked, without the mark.

    It was put there since then: what is drawn from a marked one leaves the mark there.
    """
    return state[TWISTER] == marked[TWISTER] and state[FIRST] != marked[FIRST]


def as_bytes(state: Tensor) -> bytes:
    """Return a state as plain data."""
    return state.numpy().tobytes()


def mark_state(state: Tensor) -> Tensor:
    """Return the state of a CPU generator with a mark that no other one has."""
    marked = state.clone()
    words = marked.numpy().view(np.uint64)
    # Seeds stand there, too: a number that hardly anybody chooses.
    mark = 0x4D600000 | next(numbers) & 0xFFFFF
    words[FIRST_WORD] = int(words[FIRST_WORD]) & HIGHEST_BIT | mark
    return marked
