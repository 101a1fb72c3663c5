"""Why a state dictionary does not fit a module, name by name."""

from collections.abc import Iterator, Sequence
from typing import Final

from meta_magic.explain.given_names import find_maker
from meta_magic.trace.failed_call import FailedCall, Loading
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["list_made_lines", "tell_loading"]

MAX_TOLD: Final = 3


def tell_loading(trace: Trace, failed: FailedCall, loading: Loading) -> Iterator[str]:
    """Yield what does not fit, in sentences."""
    owner, given = loading.owner, loading.given
    for name, own, other in loading.pairs[:MAX_TOLD]:
        made = find_maker(trace, failed.operands[own].tensor)
        line = f" (line {made.line})" if made is not None and made.line else ""
        wanted, got = (failed.operands[n].geometry.shape for n in (own, other))
        has = f"{owner} has {format_shape(wanted)}{line}"
        yield f"{name}: {given} has {format_shape(got)}, {has}"
    yield from tell_more(loading.pairs, "sizes differ")
    prefix = find_prefix(loading.missing, loading.unexpected)
    if loading.holders:
        yield f"{given}[{loading.holders[0]!r}] has all names that {owner} has"
    elif prefix:
        yield f"all names in {given} begin with {prefix!r}, which {owner} has not"
    elif prefix := find_prefix(loading.unexpected, loading.missing):
        yield f"all names in {owner} begin with {prefix!r}, which {given} has not"
    else:
        yield from tell_names(f"{given} lacks", loading.missing)
        yield from tell_names(f"{owner} has no", loading.unexpected)


def tell_names(words: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the first of some names, and how many more there are."""
    if names:
        n_more = len(names) - MAX_TOLD
        more = f" and {n_more} more" if n_more > 0 else ""
        yield f"{words} {', '.join(names[:MAX_TOLD])}{more}"


def tell_more(rest: Sequence[object], words: str) -> Iterator[str]:
    """Yield how many more there are than were told."""
    if len(rest) > MAX_TOLD:
        yield f"and of {len(rest) - MAX_TOLD} more the {words}"


def find_prefix(names: Sequence[str], longer: Sequence[str]) -> str:
    """Return what has to be taken from all longer names to have the others, or ""."""
    for one in longer[:1]:
        for name in names:
            prefix = one.removesuffix(name)
            if prefix != one and {prefix + other for other in names} == {*longer}:
                return prefix
    return ""


def list_made_lines(trace: Trace, failed: FailedCall, loading: Loading) -> list[int]:
    """Return the lines that made the module's tensors of other sizes."""
    made = (
        find_maker(trace, failed.operands[own].tensor) for _, own, _ in loading.pairs
    )
    return list(dict.fromkeys(call.line for call in made if call and call.line))
