"""An operator call as rules read it, and the dimensions of its tensors.

Rules name few operators, so a call is built when it is read. Read :class:`ReadCall`
first.
"""

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from meta_magic.cost.program_columns import PHASES, Columns, Flags
from meta_magic.trace.signature import short_name

if TYPE_CHECKING:
    from meta_magic.trace.program import Program
    from meta_magic.trace.signature import CallSite, Signature, SourcePosition

Atom: TypeAlias = tuple[int, int]
"""The number of an atom, and its size."""

Axis: TypeAlias = tuple[Atom, ...]
"""A dimension; () for one of size 1."""

Axes: TypeAlias = tuple[tuple[Axis, ...], ...]
"""The dimensions of each of some tensors."""

Shape: TypeAlias = tuple[int, ...]


class Mixed(NamedTuple):
    """Dimensions that a view cuts and mixes: none of them is whole afterwards.

    Attributes:
        before: Their atoms.
        after: Their sizes after it, without ones.
    """

    before: Axis
    after: Shape


@dataclass(slots=True, eq=False)
class ReadCall:
    """An operator call.

    Attributes:
        name: The operator's name, such as ``softmax`` for ``aten._softmax.default``.
        function: The last part of the torch function that made it; "" for none.
        inputs: The number of each tensor that it reads.
        outputs: The number of each tensor that it returns.
        module_call: The number of the module call that it ran in; None for none.
        axes_by_call: The dimensions of what each call reads.
    """

    index: int
    signature: "Signature"
    name: str
    site: "CallSite | None"
    function: str
    phase: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    module_call: int | None
    is_own: bool
    axes_by_call: Mapping[int, Axes]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments by name; see ``Signature``."""
        return dict(self.signature.arguments)

    @property
    def axes(self) -> Axes:
        """The dimensions of ``inputs``; () outside of the forward."""
        return self.axes_by_call.get(self.index, ())

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each tensor that it reads."""
        return [geometry.shape for geometry in self.signature.inputs]

    @property
    def made_shapes(self) -> list[Shape]:
        """The shape of each tensor that it returns."""
        return [geometry.shape for geometry in self.signature.outputs]

    @property
    def line(self) -> int | None:
        """The line of the cell."""
        return None if self.site is None else self.site.line

    @property
    def position(self) -> "SourcePosition | None":
        """The source that made it."""
        return None if self.site is None else self.site.position

    @property
    def label(self) -> str:
        """The name of the function, or else of the operator."""
        return self.function or self.name


class Calls(Sequence[ReadCall]):
    """The calls of a program, each built when it is first read.

    Attributes:
        names: For each signature the operator's name.
        tensors: For each call the tensors that it reads, then those that it returns,
            from ``first`` of it on.
        n_inputs: For each signature how many tensors it reads.
        functions: For each call site the last part of the torch function.
    """

    def __init__(
        self,
        program: "Program",
        columns: Columns,
        is_own: "Callable[[CallSite], bool]",
        axes_by_call: Mapping[int, Axes],
    ) -> None:
        self._program, self._axes_by_call = program, axes_by_call
        self.columns = columns
        self.signature = columns.signature.tolist()
        self.first, self.tensors = columns.first.tolist(), columns.tensor.tolist()
        self.names = [short_name(one.op) for one in program.signatures]
        self.n_inputs = [len(one.inputs) for one in program.signatures]
        self._built: dict[int, ReadCall] = {}
        # Their last entry is for no call site.
        sites = program.call_sites
        self._own = np.asarray([*map(is_own, sites), False], np.bool_)
        self.functions = [(s.function or "").rpartition(".")[2] for s in sites] + [""]
        numbers_by_name: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            numbers_by_name.setdefault(name, []).append(number)
        self._numbers_by_name = numbers_by_name
        self._is_among: dict[frozenset[str], Flags] = {}

    def __len__(self) -> int:
        return len(self.signature)

    @overload
    def __getitem__(self, index: int) -> ReadCall: ...

    @overload
    def __getitem__(self, index: slice) -> list[ReadCall]: ...

    def __getitem__(self, index: int | slice) -> ReadCall | list[ReadCall]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        found = self._built.get(index)
        if found is None:
            found = self._built[index] = self._build(index)
        return found

    def is_among(self, phases: frozenset[str]) -> Flags:
        """Whether each call is in one of some phases."""
        found = self._is_among.get(phases)
        if found is None:
            is_meant = np.array([phase in phases for phase in PHASES])
            found = self._is_among[phases] = is_meant[self.columns.phase]
        return found

    def is_named(self, names: Iterable[str], within: slice = slice(None)) -> Flags:
        """Whether each call, or each of some rows, is of some operators."""
        numbers = [n for name in names for n in self._numbers_by_name.get(name, ())]
        is_named = np.zeros(len(self.names), np.bool_)
        is_named[numbers] = True
        return is_named[self.columns.signature[within]]

    def find(
        self,
        names: Collection[str],
        phases: frozenset[str] = frozenset(),
        rows: range | None = None,
        *,
        is_own: bool = False,
        functions: Container[str] | None = None,
    ) -> Iterator[ReadCall]:
        """Yield calls of some operators in order.

        Args:
            names: The operators, without their overload.
            phases: Only calls in these phases; an empty set stands for all.
            rows: Only these calls; None for all.
            is_own: Whether to yield only what the user's own lines called.
            functions: Only what these functions of torch called; None for all.
        """
        if not any(name in self._numbers_by_name for name in names):
            return
        sites = [functions is None or name in functions for name in self.functions]
        if not any(sites):
            return
        rows = range(len(self)) if rows is None else rows
        within = slice(rows.start, rows.stop)
        is_meant = self.is_named(names, within)
        if phases:
            is_meant &= self.is_among(phases)[within]
        if is_own or functions is not None:
            is_site = self._own & sites if is_own else np.asarray(sites)
            is_meant &= is_site[self.columns.call_site[within]]
        for row in np.flatnonzero(is_meant).tolist():
            yield self[rows.start + row]

    def _build(self, row: int) -> ReadCall:
        columns, number = self.columns, self.signature[row]
        signature = self._program.signatures[number]
        first, last = self.first[row : row + 2]
        middle = first + self.n_inputs[number]
        module, at = int(columns.module_call[row]), int(columns.call_site[row])
        site = None if at < 0 else self._program.call_sites[at]
        return ReadCall(
            row,
            signature,
            self.names[number],
            site,
            self.functions[at],
            PHASES[columns.phase[row]],
            self.tensors[first:middle],
            self.tensors[middle:last],
            None if module < 0 else module,
            bool(self._own[at]),
            self._axes_by_call,
        )
