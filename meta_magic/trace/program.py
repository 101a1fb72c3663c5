"""The recorded program: distinct facts in tables, calls as columns of integers.

Whatever repeats (a signature, a position in the source, a geometry) is stored once in a
table. One operator call is a row of a few 32-bit words that point into the tables, so
that a million calls take some 30 MB. Read ``HEADER`` and :class:`Program` first;
``calls.py`` turns rows into records. The functions at the end derive facts from the
rows, as which storages are on meta because the code asked for it.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace.program_facts import (
    Assumption,
    Constant,
    Evaluation,
    KernelChoice,
    RaisedCall,
    StorageFacts,
)
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Argument,
    CallSite,
    Geometry,
    Signature,
    SourcePosition,
)
from meta_magic.trace.units import format_bytes, format_flops

FIRST_SIZE: Final = 2**8
"""Integers allocated at first: small cells have few calls, and are kept for long."""


class Growing:
    """An array of 32-bit integers that grows at its end; its views are no copies."""

    def __init__(self) -> None:
        self._room = np.empty(FIRST_SIZE, np.uint32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def extend(self, numbers: Sequence[int]) -> None:
        """Append integers."""
        end = self._n + len(numbers)
        if end > len(self._room):
            room = np.empty(2 * end, np.uint32)  # pages are taken when written
            room[: self._n] = self._room[: self._n]
            self._room = room
        self._room[self._n : end] = array("I", numbers)  # faster than a list
        self._n = end

    def follow(self, column: Sequence[int]) -> memoryview:
        """Append the rest of a longer column, and return a view of all."""
        self.extend(column[self._n :])
        return self.view()

    def view(self) -> memoryview:
        """Return a view of the present integers; later ones are not in it."""
        return self._room.data[: self._n]


HEADER: Final = 4
"""Words before the tensors of a call: signature, call site + 1, module word, link.

The module word is 0 for none, 2 * module call + 2 inside a module call, or 2 * module
+ 1 while that module is being constructed. The link is ``GOES_ON`` where the same
call of a torch function made the operator before, forward operator + ``TIED`` for a
backward operator, else 0.
"""

GOES_ON: Final = 1
TIED: Final = 2

MODULE_HEADER: Final = 7
"""Words of a module call: module, parent call + 1, position + 1, line or 0, first
operator, operator after the last, start of its tensors in ``module_values``."""

MODULE_LINE: Final = 3
"""Which of them is the line."""

DRAW: Final = 3
"""Words of a random operator in ``Randomness.draws``: operator, generator, source.

The source is the state of the generator before the draw: 0 where it is unknown, 2 *
draw + 2 after an earlier draw, or 2 * index + 1 for one of ``Randomness.states``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEnd:
    """The state that a generator would have after the draws of an earlier recording.

    Attributes:
        program: The earlier recording.
        source: The state, as the source of a draw in that recording.
    """

    program: "Program" = field(repr=False)
    source: int


ELSEWHERE: Final = 0xE15E
"""A planned device draws from a generator of the CPU. This changes its seed, so that it
draws other numbers than the CPU's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """The states of generators that random operators would have drawn from.

    On the meta device nothing is drawn, and no generator advances. The recorded state
    before each draw lets a replay draw the same numbers as the CPU.

    Attributes:
        draws: ``DRAW`` words for each random operator.
        states: Generator states that no draw led to: at the start, after
            ``manual_seed`` and ``set_state``; or the end of an earlier recording, where
            nothing drew from the generator since.
        known: (draw, state after it) of draws that were made for real.
        generators: Device of each generator; index 0 is torch's default on the CPU.
        ends: State of each generator at the end of the block, as the source of a draw.
        accelerator: (device, state) of the default generators of CUDA devices at the
            start, where CUDA was in use.
        n_unseeded: How many of ``states`` were there when the block first seeded the
            default generators; None if it never did.
    """

    draws: bytes = b""
    states: tuple[bytes | EarlierEnd, ...] = ()
    known: tuple[tuple[int, bytes], ...] = ()
    generators: tuple[str, ...] = ("cpu",)
    ends: tuple[int, ...] = (0,)
    accelerator: tuple[tuple[str, bytes], ...] = ()
    n_unseeded: int | None = None


class Import(NamedTuple):
    """A meta storage that an earlier recording made, and this one reads.

    Attributes:
        storage: Number of the storage here.
        program: The recording that made it.
        origin: Number of the storage there.
        nbytes: Its bytes at first sight.
        version: torch's count of its in-place writes then.
        is_stale: Whether it had been written since, outside of any recording.
    """

    storage: int
    program: "Program"
    origin: int
    nbytes: int
    version: int
    is_stale: bool

    def __repr__(self) -> str:
        """Leave out the program, which has imports of its own."""
        known = (f"{n}={v}" for n, v in self._asdict().items() if n != "program")
        return f"Import({', '.join(known)})"


Structure: TypeAlias = tuple[
    tuple[tuple[str, Geometry], ...], tuple[tuple[str, Geometry], ...]
]
"""The tensors that a module call took and returned, each with its path."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The columns of one recording; ``calls.py`` reads them.

    All integers are 32 bits wide, in the byte order of the machine. Columns of calls
    and tensors are views while the recording runs.

    Attributes:
        words: One row after another: ``HEADER`` words, then the number of each tensor
            read and of each returned.
        signatures: The first word of a row is an index into them.
        call_sites: The second word of a row is an index into these, from 1.
        positions: The position of a module call is an index into them, from 1.
        storage_by_tensor: For each tensor number the number of its storage.
        deaths: Pairs (operator calls made before, storage), one per freed storage.
        nbytes_by_storage: (storage, bytes) of storages whose size is not what the first
            tensor seen on them needs.
        module_rows: ``MODULE_HEADER`` words for each module call.
        module_values: For each module call its structure, then for each tensor taken
            and returned 2 * its number, plus one if it required grad.
        structures: The first of those words is an index into them.
        calls_while_built: The module calls that the construction of a module made.
        modules: (root, fqn, class name) by module number; root and fqn are None for a
            module that was gone before it could be found in a tree.
        owner_by_storage: (storage, module number) for each parameter and buffer.
        facts: Other facts of storages.
        randomness: The generator states that random operators would have drawn from.
        constants: Storages whose content no operator made.
        imports: Storages that earlier recordings made.
        written_unseen: Real storages that were written without torch, as by numpy.
        caveats: (text, line of the cell or None): why a replay may differ from the
            same block on a real device.
        evaluations: The calls that were answered with real values.
        assumptions: The calls whose sizes were assumed.
        kernels: The kernels that the device would choose.
        flags: (first call, name, value) of flags of torch's backends that were set.
        as_device: The device whose kernels are recorded; ``meta`` for torch's own.
        raised: The call that ended the recording by an error; None if none did.
    """

    words: bytes | memoryview
    signatures: tuple[Signature, ...]
    call_sites: tuple[CallSite, ...]
    positions: tuple[SourcePosition, ...]
    storage_by_tensor: bytes | memoryview
    deaths: bytes | memoryview
    nbytes_by_storage: tuple[tuple[int, int], ...]
    module_rows: bytes
    module_values: bytes
    structures: tuple[Structure, ...]
    modules: tuple[tuple[int | None, str | None, str], ...]
    owner_by_storage: tuple[tuple[int, int], ...]
    facts: StorageFacts = field(default_factory=StorageFacts)
    randomness: Randomness = Randomness()
    constants: tuple[Constant, ...] = ()
    imports: tuple[Import, ...] = ()
    written_unseen: tuple[int, ...] = ()
    caveats: tuple[tuple[str, int | None], ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    kernels: tuple[KernelChoice, ...] = ()
    flags: tuple[tuple[int, str, object], ...] = ()
    as_device: str = "meta"
    raised: RaisedCall | None = None
    calls_while_built: tuple[int, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        # Cached properties are left out: they can be computed again.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def n_calls(self) -> int:
        """How many operator calls returned."""
        return len(self.offsets) - 1

    @cached_property
    def with_raised(self) -> "Program":
        """The program, with the call that raised as one more row."""
        if self.raised is None:
            return self
        raised, number = self.raised, len(self.signatures)
        last = GOES_ON if raised.goes_on else 0
        row = (number, raised.call_site, raised.module_word, last, *raised.tensors)
        return replace(
            self,
            words=bytes(self.words) + array("I", row).tobytes(),
            signatures=(*self.signatures, raised.signature),
            raised=None,
        )

    @cached_property
    def offsets(self) -> memoryview:
        """The index in ``words`` of each row, and the end of the last one."""
        words, known = memoryview(self.words).cast("I"), self._offsets
        offsets = array("I", known.view()[-1:])
        widths: dict[int, int] = {}  # only of used signatures: there may be many others
        offset, end = offsets[-1], len(words)
        while offset < end:
            number = words[offset]
            if number not in widths:
                signature = self.signatures[number]
                n_tensors = len(signature.inputs) + len(signature.outputs)
                widths[number] = HEADER + n_tensors
            offset += widths[number]
            offsets.append(offset)
        known.extend(offsets[1:])
        return known.view()

    @cached_property
    def _offsets(self) -> Growing:
        offsets = Growing()
        offsets.extend([0])
        return offsets

    def go_on_from(self, earlier: "Program") -> None:
        """Take over the offsets of an earlier state of the same recording."""
        if earlier.offsets:  # computes them
            self.__dict__["_offsets"] = earlier._offsets

    @cached_property
    def n_writes_by_storage(self) -> Counter[int]:
        """How many operators wrote each storage, without the one that made it."""
        return self.count_writes(lambda _op: True)

    def count_writes(self, is_chosen: Callable[[str], bool]) -> Counter[int]:
        """Return how many calls of the chosen operators wrote each storage."""
        writes = [
            s.writes if s.writes and is_chosen(s.op) else () for s in self.signatures
        ]
        if not any(writes):
            return Counter()
        words = memoryview(self.words).cast("I")
        storages = memoryview(self.storage_by_tensor).cast("I")
        return Counter(
            storages[words[offset + HEADER + index]]
            for offset in self.offsets[:-1]
            for index in writes[words[offset]]
        )

    def count_signatures(self) -> list[int]:
        """Return how many calls each signature has."""
        words = np.frombuffer(self.words, np.uint32)
        starts = np.frombuffer(self.offsets, np.uint32)[:-1]
        n_signatures = len(self.signatures)
        counts: list[int] = np.bincount(words[starts], minlength=n_signatures).tolist()
        return counts

    def walk_calls(
        self, first: int = 0
    ) -> Iterator[tuple[int, Signature, list[int], list[int]]]:
        """Yield number, signature, read and returned storages of calls from one on."""
        words = memoryview(self.words).cast("I")
        storages = memoryview(self.storage_by_tensor).cast("I")
        for index in range(first, self.n_calls):
            offset, end = self.offsets[index], self.offsets[index + 1]
            signature = self.signatures[words[offset]]
            found = [storages[word] for word in words[offset + HEADER : end]]
            n_read = len(signature.inputs)
            yield index, signature, found[:n_read], found[n_read:]

    def signature_numbers(self) -> Iterator[int]:
        """Yield the signature of each call in turn."""
        words = memoryview(self.words).cast("I")
        return map(words.__getitem__, self.offsets[:-1])


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
