"""Facts that follow from the rows of a program, and are not recorded themselves.

Which calls rest on an assumption (``find_assumed``), which storages are on meta because
the code asked for it (``find_on_meta``), which operators one call of a torch function
made (``first_operators``), and the texts that tables show for a span of operators
(``find_evaluations`` and its neighbours).
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace.program import GOES_ON, Program
from meta_magic.trace.signature import NAN, NEGATIVE_NAN, Argument, Signature
from meta_magic.trace.units import format_bytes, format_flops

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption


def find_firsts(numbers: NDArray[np.integer[Any]], n: int) -> NDArray[np.int64]:
    """Return for each number from 0 to ``n`` - 1 its first index in an array, or -1."""
    firsts = np.full(n, -1, np.int64)
    # Of several indices written to one element the last one stays.
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return firsts


def first_operators(program: Program) -> NDArray[np.int64]:
    """Return for each operator the first of the same call of a function, or itself."""
    words = np.frombuffer(program.words, np.uint32)
    starts = np.frombuffer(program.offsets, np.uint32)[:-1].astype(np.int64)
    sites = words[starts + 1]
    # A hook may have called functions between two operators of a backward pass.
    goes_on = (words[starts + 3] == GOES_ON) & (sites == np.append(0, sites[:-1]))
    first = np.where(goes_on, 0, np.arange(len(starts)))
    return np.maximum.accumulate(first)


def find_on_meta(program: Program) -> set[int]:
    """Return the storages on meta by name, and those computed from them.

    ``with torch.device("meta"): model = build()`` takes no memory on the CPU either,
    nor do its results, until ``to_empty`` or a move puts them on a device. The set is
    empty where the kernels of meta are recorded: there everything is on meta.
    """
    return StoragesOnMeta().follow(program, program.facts.on_meta)


class StoragesOnMeta:
    """Follows which storages are on meta, as :func:`find_on_meta` finds them."""

    def __init__(self) -> None:
        self._found: set[int] = set()
        self._n_followed = 0
        self._last: Program | None = None

    def follow(self, program: Program, named: Iterable[int]) -> set[int]:
        """Return the storages on meta now, given those that code put there by name."""
        found = self._found
        found.update(named)
        if not found or program.as_device == "meta":
            return set()
        if self._last is not None:
            program.go_on_from(self._last)
        self._last = program
        for _, signature, read, made in program.walk_calls(self._n_followed):
            if not found.isdisjoint(read):
                pairs = zip(made, signature.outputs, strict=True)
                unnamed = [storage for storage, g in pairs if g.placement is None]
                found.update(set(unnamed).difference(read))
        self._n_followed = program.n_calls
        return found


class AssumedNumbers:
    """The numbers that ``--assume values=...`` gave to Python code.

    For nan it is known which later calls depend on it, because all results of nan are
    nan; on other numbers all later calls may depend.

    Attributes:
        first: The first call that gave one; None if there is none.
    """

    def __init__(self, program: Program) -> None:
        found = (a for a in program.assumptions if a.value is not None)
        self.first: Assumption | None = next(found, None)

    def may_be_in(self, call: int, signature: Signature) -> bool:
        """Whether the arguments of a call may come from an assumed number."""
        if self.first is None or self.first.value is None or call <= self.first.call:
            return False
        is_nan = math.isnan(self.first.value)
        return not is_nan or any(has_nan(value) for _, value in signature.arguments)


def has_nan(value: Argument) -> bool:
    """Whether an argument is nan, or contains it."""
    if isinstance(value, tuple):
        return any(map(has_nan, value))
    return value in (NAN, NEGATIVE_NAN)


def find_assumed(program: Program) -> dict[int, str]:
    """Return the assumption on which the sizes or inputs of each call rest, if any."""
    assumed = {a.call: a.text for a in program.assumptions}
    if not assumed:
        return {}
    numbers, text_by_storage = AssumedNumbers(program), dict[int, str]()
    for index, signature, read, made in program.walk_calls():
        found = assumed.get(index) or next(
            (text_by_storage[s] for s in read if s in text_by_storage), None
        )
        if numbers.first is not None and numbers.may_be_in(index, signature):
            found = found or numbers.first.text
        if found is None:
            continue
        assumed[index] = found
        for storage in (*made, *(read[i] for i in signature.writes)):
            text_by_storage.setdefault(storage, found)
    return assumed


Span: TypeAlias = tuple[int, int, str]
"""First operator, operator after the last, and the text that tables show for them."""


def find_evaluations(program: Program) -> list[Span]:
    """Return the cost of the values that were computed."""
    return [
        (call, call + 1, f"{n:,} calls, {format_bytes(nbytes)}, {format_flops(flops)}")
        for call, n, nbytes, flops in program.evaluations
    ]


def find_kernels(program: Program) -> list[Span]:
    """Return which kernels the device would choose."""
    return [(k.first_op, k.end_op, k.text) for k in program.kernels]


def find_raised(program: Program) -> list[Span]:
    """Return the error of the call that ended the block."""
    raised, index = program.raised, program.n_calls
    return [] if raised is None else [(index, index + 1, raised.error)]


def find_assumptions(program: Program) -> list[Span]:
    """Return the assumptions on sizes, equal texts in a row joined to one span."""
    return [*_join_spans(find_assumed(program))]


def _join_spans(text_by_call: dict[int, str]) -> Iterator[Span]:
    first, end, current = 0, 0, ""
    for index, text in sorted(text_by_call.items()):
        if (index, text) != (end, current):
            if end > first:
                yield first, end, current
            first, current = index, text
        end = index + 1
    if end > first:
        yield first, end, current
