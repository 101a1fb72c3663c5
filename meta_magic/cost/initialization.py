"""Find the tensors of modules that hold no values, or not those of the constructor.

``model.to_empty(device="cuda")`` allocates all parameters and buffers anew, and
``reset_parameters()`` fills those that its author thought of. What is left, such as the
frequencies of a rotary embedding, is garbage, and no error says so. Read
:func:`follow_contents` first: it follows each tensor of a model to the call that gave
its values, and through ``to_empty`` to the one that did so in the constructor.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Final, TypeGuard

import numpy as np

from meta_magic.cost.program_columns import PHASES, Columns
from meta_magic.trace.calls import OpCalls
from meta_magic.trace.modules import walk_tensors
from meta_magic.trace.program import Program
from meta_magic.trace.signature import EMPTY, SHAPE_ONLY, Signature, short_name

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode

    Roots = Sequence[ModuleNode]

CONSTANTS: Final = {
    **dict.fromkeys(("zero_", "zeros", "zeros_like", "new_zeros"), "0"),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), "1"),
}
"""The value that an operator writes to each element."""

FILLS: Final = {"fill_", "full", "full_like", "new_full"}
"""Operators that write the value of an argument to each element."""

RANDOM: Final = {
    *("uniform_", "normal_", "bernoulli_", "random_", "exponential_", "geometric_"),
    *("cauchy_", "log_normal_", "rand", "rand_like", "randn", "randn_like", "randint"),
    *("randint_like", "randperm", "normal"),
}
"""Operators that draw each element."""

COPIES: Final = {"copy_", "clone", "to_copy", "lift_fresh"}
"""Operators whose result has the values of their last tensor argument."""

NOTHING: Final = "nothing"
DRAWN: Final = "random numbers"
COMPUTED: Final = "computed values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a tensor holds at some point of a program.

    Attributes:
        kind: ``nothing``, ``random numbers``, ``computed values``, or a constant.
        call: The call that gave it; for ``nothing`` the one that allocated it; -1 for
            data, which no call gave.
        line: The line of that call; None if it is not known.
    """

    kind: str
    call: int
    line: int | None

    def __str__(self) -> str:
        return self.kind if self.line is None else f"{self.kind} (line {self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorContents:
    """What a parameter or buffer of a module holds, and what its constructor gave.

    Attributes:
        name: Name of the root, and of the tensor within it.
        kind: ``parameter`` or ``buffer``.
        contents: What it holds when the block ends, or when a forward first reads it.
        constructed: What it held before ``to_empty`` allocated it anew, if that was so.
        read_line: The line of the first forward call that reads it; None if none does.
        read: The first forward call that reads it.
        root: Index of its root in ``Trace.modules``.
        has_company: Whether ``to_empty`` made another tensor of the root with values.
    """

    name: str
    kind: str
    contents: Contents
    constructed: Contents | None
    read_line: int | None
    read: int | None = None
    root: int = 0
    has_company: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing gave it values, though something should have.

        A buffer that its constructor leaves empty, such as a cache, need not have any.
        """
        before = self.constructed
        had_values = before is not None and before.kind != NOTHING
        is_meant = had_values or self.kind == "parameter" or self.read_line is not None
        return self.contents.kind == NOTHING and is_meant

    @property
    def is_certain(self) -> bool:
        """Whether it is empty, and no later code can be meant to fill it."""
        return self.is_empty and (self.read_line is not None or self.has_company)

    @property
    def is_other(self) -> bool:
        """Whether it holds values of another kind than those of the constructor."""
        kinds = {self.contents.kind, (self.constructed or self.contents).kind}
        return len(kinds) > 1 and NOTHING not in kinds

    def __str__(self) -> str:
        gave = f"its constructor gave {self.constructed}"
        if self.contents.kind != NOTHING:
            text = f"{self.name} holds {self.contents}"
            return f"{text}, and {gave}" if self.is_other else text
        line = "" if self.contents.line is None else f" after line {self.contents.line}"
        text = f"{self.name} is uninitialized memory: nothing wrote it{line}"
        if self.constructed is not None and self.constructed.kind != NOTHING:
            text += f"; {gave}"
        if self.read_line is not None:
            text += f"; line {self.read_line} reads it"
        return text


class History:
    """The calls that made, wrote and read each storage, in order."""

    def __init__(self, program: Program, columns: Columns) -> None:
        self._ops = OpCalls(program)
        self._signatures = program.signatures
        self._columns = columns
        self._tensors = np.argsort(columns.storage, kind="stable")
        self._starts = np.searchsorted(
            columns.storage[self._tensors], np.arange(columns.n_storages + 1)
        )
        self.contents_at = cache(self._contents_at)

    def list_tensors(self, storage: int) -> Iterator[int]:
        """Yield the entries of a storage in the columns of tensors, in order."""
        yield from self._tensors[self._starts[storage] : self._starts[storage + 1]]

    def signature(self, call: int) -> Signature:
        """Return the signature of a call."""
        found: Signature = self._signatures[self._columns.signature[call]]
        return found

    def list_writes(self, storage: int) -> list[int]:
        """Return the call that made a storage, if one did, and those that wrote it."""
        columns, found = self._columns, list[int]()
        for position, tensor in enumerate(self.list_tensors(storage)):
            call = int(columns.call[tensor])
            is_first = columns.is_made[tensor] and position == 0
            if (is_first or columns.is_written[tensor]) and call not in found[-1:]:
                found.append(call)
        return found

    def _contents_at(self, storage: int, end: int) -> Contents | None:
        """Return what a storage holds before a call; None if it is from outside."""
        contents: Contents | None = None
        for call in self.list_writes(storage):
            if call >= end:
                break
            holds_values = contents is not None and contents.kind != NOTHING
            # A part, such as the row of the padding index after all rows were drawn,
            # does not change what the whole holds.
            if not (holds_values and self._is_part(storage, call)):
                contents = self._find_given(contents, storage, call)
        return contents

    def _find_given(
        self, before: Contents | None, storage: int, call: int
    ) -> Contents | None:
        """Return what a call gives to the elements that it makes or writes."""
        signature = self.signature(call)
        name = short_name(signature.op)
        kind = COMPUTED
        if name in EMPTY:
            kind = NOTHING
        elif name in RANDOM:
            kind = DRAWN
        elif name in CONSTANTS:
            kind = CONSTANTS[name]
        elif name in FILLS:
            values = [value for _, value in signature.arguments if is_number(value)]
            kind = f"{values[0]:g}" if values else COMPUTED
        elif name in COPIES and signature.inputs:
            source = self._source_of(call)
            copied = before if source == storage else self.contents_at(source, call)
            return copied or self._give(COMPUTED, call)
        elif before is not None and before.kind == DRAWN:
            return before  # such as the steps of trunc_normal_ after uniform_
        return self._give(kind, call)

    def _is_part(self, storage: int, call: int) -> bool:
        """Whether a call writes fewer elements than a storage has."""
        signature = self.signature(call)
        written = [signature.inputs[index] for index in signature.writes]
        sizes = [prod(geometry.shape) * geometry.dtype.itemsize for geometry in written]
        held = [self._columns.nbytes[tensor] for tensor in self.list_tensors(storage)]
        return bool(sizes) and max(sizes) < max(held)

    def _source_of(self, call: int) -> int:
        """Return the storage of the last tensor argument of a call."""
        columns = self._columns
        n_inputs = len(self.signature(call).inputs)
        return int(columns.storage[columns.first[call] + n_inputs - 1])

    def find_constructed(self, storage: int) -> Contents | None:
        """Return what a tensor held before ``to_empty`` allocated it anew, or None."""
        writes = self.list_writes(storage)
        signature = self.signature(writes[0]) if writes else None
        if signature is None or not signature.inputs:
            return None
        name, source = short_name(signature.op), self._source_of(writes[0])
        if name in {"to_copy", "clone"}:
            return self.find_constructed(source)
        if name != "empty_like":
            return None
        before = self.find_constructed(source) or self.contents_at(source, writes[0])
        # Without a call that gave its values, it is made of data, as by torch.tensor.
        return before or Contents(kind=COMPUTED, call=-1, line=None)

    def find_read(self, storage: int) -> int | None:
        """Return the first forward call that reads the values of a storage."""
        columns = self._columns
        for tensor in self.list_tensors(storage):
            call = int(columns.call[tensor])
            is_read = not columns.is_made[tensor] and not columns.is_written[tensor]
            is_forward = columns.phase[call] == PHASES.index("forward")
            if is_read and is_forward:
                signature = self.signature(call)
                is_metadata = short_name(signature.op) in SHAPE_ONLY
                if not signature.is_view and not is_metadata:
                    return call
        return None

    def line_of(self, call: int) -> int | None:
        """Return the line of a call."""
        return self._ops[call].line

    def _give(self, kind: str, call: int) -> Contents:
        return Contents(kind=kind, call=call, line=self.line_of(call))


def is_number(value: object) -> TypeGuard[float]:
    """Whether an argument is a number, such as the value of ``fill_``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def may_be_empty(program: Program, columns: Columns, roots: "Roots") -> bool:
    """Whether a tensor of a module may hold nothing; this costs less than to know."""
    held = {storage for _, _, storage in walk_tensors(roots)}
    makes = [short_name(signature.op) in EMPTY for signature in program.signatures]
    is_empty = np.asarray([*makes, False], np.bool_)[columns.signature]
    empty = {*columns.storage[columns.is_made & is_empty[columns.call]].tolist()}
    return not held.isdisjoint(empty - {*columns.storage[columns.is_written].tolist()})


def follow_contents(
    program: Program, columns: Columns, roots: "Roots"
) -> Iterator[TensorContents]:
    """Yield what the parameters and buffers hold that the block allocated."""
    history = History(program, columns)
    for number, root in enumerate(roots):
        found = [*follow_root(history, root)]
        has_company = any(
            one.constructed and one.contents.kind != NOTHING for one in found
        )
        for one in found:
            yield replace(one, root=number, has_company=has_company)


def follow_root(history: History, root: "ModuleNode") -> Iterator[TensorContents]:
    """Yield what each parameter and buffer of a module tree holds."""
    followed = set[int]()
    for name, tensor, storage in walk_tensors([root]):
        is_known = storage < 0 or storage in followed or not tensor.numel
        if is_known or tensor.kind == "attribute":
            continue
        followed.add(storage)
        read = history.find_read(storage)
        contents = history.contents_at(storage, sys.maxsize if read is None else read)
        if contents is not None:
            yield TensorContents(
                name=name,
                kind=tensor.kind,
                contents=contents,
                constructed=history.find_constructed(storage),
                read_line=None if read is None else history.line_of(read),
                read=read,
            )
