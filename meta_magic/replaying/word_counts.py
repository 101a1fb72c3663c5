"""How many words of a generator on the CPU a call draws, where that is certain.

It is for operators that draw for one element after the other, or for groups of 16, as
torch's kernels say that are listed here (ATen/native/cpu/DistributionTemplates.h). How
many words is measured, in each process and for the very arguments: another torch, or
another build of it, may draw otherwise.
"""

import math
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Generator, Tensor

from meta_magic.replaying.operators import DRAWN
from meta_magic.replaying.program_calls import Call
from meta_magic.replaying.split_draws import is_in_order
from meta_magic.torch_private.generator_state import N, advance, count_taken
from meta_magic.torch_private.snapshot import RealTorch

__all__ = ["count_words", "go_on"]

NAMES: Final = """
normal_.default uniform_.default random_.default random_.from random_.to
exponential_.default cauchy_.default geometric_.default bernoulli_.float
"""
LINEAR: Final = DRAWN.keys() | {f"aten.{name}" for name in NAMES.split()}
"""Operators that draw as many words for each 16 elements more, whatever they draw. Not
``log_normal_``, which leaves a number for the next, nor what rejects numbers."""

GROUP: Final = 16
"""Elements below which ``normal_`` draws in another way, and leaves a number."""

LARGER: Final = (9 * GROUP, 2**12, 2**16)
"""Elements, besides the first and the second few, for which a count is confirmed."""

MAX_COUNTS: Final = 2**9
"""That are kept: of noise that is scaled otherwise at each step there is no end."""

MUCH: Final = 2**16
"""Elements from which on a count is worth the 2 ms that it takes in any case."""

MAX_DRAWN: Final = 2**20
MIN_JUMP: Final = 2**23
"""Words from which on a generator is advanced in less time than it draws them."""

CPU: Final = torch.device("cpu")


class Count(NamedTuple):
    """Words that are drawn for tensors of which the last group has as many elements.

    Attributes:
        first: For a tensor of one group and that rest.
        more: For each group more.
    """

    first: int
    more: int


counts: dict[object, Count | None] = {}


def count_words(call: Call, device: torch.device) -> int | None:
    """Return how many words of 32 bits a call draws on the CPU; None if not certain.

    Nothing else of the generator is changed by such a call.

    Args:
        call: The call.
        device: What stands for meta. None of another generator than the CPU's.
    """
    is_listed = call.operator.name in LINEAR or is_never_rejected(call)
    if not is_listed or call.device_on(device).type != "cpu":
        return None
    geometry, numel = call.drawn, math.prod(call.drawn.shape)
    if numel < GROUP or not (is_in_order(geometry) and is_advanced_as_known()):
        return None
    n_groups, rest = divmod(numel, GROUP)
    given = [a for a in call.signature.arguments if a[0] not in ("size", "generator")]
    key = (call.operator.name, repr(given), geometry.dtype, rest)
    if key not in counts:
        if len(counts) >= MAX_COUNTS:
            if numel < MUCH:
                return None
            counts.pop(next(iter(counts)), None)
        counts[key] = measure(call, rest)
    count = counts[key]
    return None if count is None else count.first + (n_groups - 1) * count.more


def is_never_rejected(call: Call) -> bool:
    """Whether a call is a ``trunc_normal_`` of which no number can be out of bounds.

    What ``normal_`` makes of a uniform number of 53 bits, that is not 1, is at most
    sqrt(-2 log 2^-53) = 8.6 standard deviations from the mean.
    """
    if call.operator.name != "nn.init.trunc_normal_":
        return False
    given = dict(call.signature.arguments)
    numbers = [given[name] for name in ("mean", "std", "a", "b")]
    mean, std, low, high = (n if isinstance(n, float) else math.nan for n in numbers)
    is_exact = abs(mean) <= 100 * std  # else it may be rounded by more than the rest
    return is_exact and low <= mean - 10 * std and mean + 10 * std <= high


def measure(call: Call, rest: int) -> Count | None:
    """Return how many words calls draw that are alike but for their size.

    None if they fail, do not all draw by one rule, or change more of the generator.
    """
    try:
        with RealTorch():
            first, second = (find_words(call, n * GROUP + rest) for n in (1, 2))
            if first is None or second is None:
                return None
            count = Count(first, second - first)
            is_so = all(confirm(call, count, larger + rest) for larger in LARGER)
    except (RuntimeError, LookupError, TypeError, ValueError):
        return None  # it will fail again, where that is told
    return count if is_so else None


def confirm(call: Call, count: Count, numel: int) -> bool:
    """Whether a call for some elements draws as many words as a count says."""
    before, after = draw(call, numel, has_number=True)
    n_words = count.first + (numel // GROUP - 1) * count.more
    return is_same(advance(before, n_words), after)


def find_words(call: Call, numel: int) -> int | None:
    """Return how many words a call draws for a few elements, if that is all it does."""
    found = set()
    for has_number in (False, True):
        before, after = draw(call, numel, has_number=has_number)
        n = ((count_taken(after) or 0) - (count_taken(before) or 0)) % N
        found.add(n if is_same(advance(before, n), after) else None)
    return found.pop() if len(found) == 1 else None


def draw(call: Call, numel: int, *, has_number: bool) -> tuple[Tensor, Tensor]:
    """Make a call for some elements; return a generator's state before it and after it.

    Args:
        call: The call.
        numel: How many elements.
        has_number: Whether ``normal_`` has left a number in the generator.
    """
    generator = Generator().manual_seed(numel)
    if has_number:
        torch.empty(1).normal_(generator=generator)
    before = generator.get_state()
    tensor = torch.empty(numel, dtype=call.drawn.dtype)
    call.operator.call(call.usage.arguments, [tensor], CPU, generator)
    return before, generator.get_state()


def go_on(generator: Generator, n_words: int) -> None:
    """Let a generator go on by some words that :func:`count_words` counted."""
    if n_words >= MIN_JUMP:
        state = advance(generator.get_state(), n_words)
        if state is not None:
            generator.set_state(state)
            return
    scratch = torch.empty(min(n_words, MAX_DRAWN), dtype=torch.float32)
    for start in range(0, n_words, MAX_DRAWN):
        scratch[: n_words - start].uniform_(generator=generator)


@cache
def is_advanced_as_known() -> bool:
    """Whether ``uniform_`` draws a word for each element, and states are as known."""
    with RealTorch():
        generator = Generator().manual_seed(0)
        before = generator.get_state()
        torch.empty(2**16, dtype=torch.float32).uniform_(generator=generator)
        return is_same(advance(before, 2**16), generator.get_state())


def is_same(state: Tensor | None, other: Tensor) -> bool:
    """Whether two states of generators are the same to the bit."""
    return state is not None and torch.equal(state, other)
