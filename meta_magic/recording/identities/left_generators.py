"""Remember where recordings left generators whose draws they did not make.

Meta moves no generator: the next recording finds one where the last one found it, and
would draw the same numbers again. On the CPU it would go on. So a generator that a
recording leaves carries a *mark* in its state, by which the next recording knows that
nothing drew from it, and nothing seeded it, in between.

The mark stands in the first word of the Mersenne Twister, of whose bits only the
highest decides any number that is still to be drawn: the recurrence takes the upper bit
of each word and the lower ones of the next, and the word itself was drawn already.
"""

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
from torch import Generator, Tensor

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.program import EarlierEnd, Program

__all__ = [
    "LeftGenerator",
    "find_left",
    "forget_left",
    "keep_left",
    "mark_state",
    "settle_default",
    "was_used_since",
]

FIRST_WORD: Final = 3
"""Where in a CPU generator's state, as words of 64 bits, the Twister's first stands."""

SEED: Final = slice(0, 8)
"""Bytes of that state which hold the seed."""

HIGHEST_BIT: Final = 1 << 31
MAX_KEPT: Final = 32

numbers = count(1)


@dataclass(eq=False)
class LeftGenerator:
    """A generator as a recording left it.

    Attributes:
        state: Its state, with the mark.
        end: Where it would stand, had the draws been made.
        is_default: Whether it is torch's default.
        is_settled: Whether a recording since then left the default where it belongs.
    """

    state: bytes
    end: EarlierEnd
    is_default: bool
    is_settled: bool = False


kept: deque[LeftGenerator] = deque(maxlen=MAX_KEPT)


def keep_left(left: LeftGenerator) -> None:
    """Remember how a recording left a generator."""
    kept.append(left)


def find_left(state: bytes) -> EarlierEnd | None:
    """Return where a generator in this state would stand, if a recording left it so."""
    return next((left.end for left in kept if left.state == state), None)


def forget_left(program: Program) -> None:
    """Forget how a recording left torch's default generator: that was moved on."""
    for left in [*kept]:
        if left.is_default and left.end.program is program:
            kept.remove(left)


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
    last = next((left for left in reversed(kept) if left.is_default), None)
    if last is None or last.is_settled or state == last.state:
        return False
    if state[SEED] != last.state[SEED]:
        return False
    with DisableTorchFunction(), DisableTorchDispatch():
        seeded = Generator().manual_seed(int.from_bytes(state[SEED], "little"))
        return seeded.get_state().numpy().tobytes() != state


def mark_state(state: Tensor) -> Tensor:
    """Return the state of a CPU generator with a mark that no other one has."""
    marked = state.clone()
    words = marked.numpy().view(np.uint64)
    # Seeds stand there, too: a number that hardly anybody chooses.
    mark = 0x4D600000 | next(numbers) & 0xFFFFF
    words[FIRST_WORD] = int(words[FIRST_WORD]) & HIGHEST_BIT | mark
    return marked
