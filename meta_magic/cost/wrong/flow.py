"""The calls of a program with what rules ask of them, and the mistakes of rules.

Read :class:`Flow` first.
"""

import ast
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from linecache import getlines
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meta_magic.cost.advice.evidence import is_own_file
from meta_magic.cost.program_columns import Flags, read_columns
from meta_magic.cost.wrong.axes import Axes
from meta_magic.cost.wrong.read_calls import Calls, ReadCall
from meta_magic.trace.calls import ModuleCalls
from meta_magic.trace.program import MODULE_HEADER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meta_magic.trace.calls import ModuleCall
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program
    from meta_magic.trace.signature import CallSite
    from meta_magic.trace.trace import Trace


def name_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


VIEWS: Final = name_set(
    "view unsafe_view unsqueeze squeeze transpose permute t alias detach expand slice "
    "select clone to_copy contiguous"
)
"""Operators whose results are elements of their operand."""

FORWARD: Final = frozenset({"forward", "other"})
"""Phases whose calls rules look at."""

RECORDED: Final = "record_function_enter_new"
"""The operator by which torch's optimizers name what they do."""


class Mistake(NamedTuple):
    """A mistake that a rule finds.

    Attributes:
        call: The call at whose line the mistake shows.
        text: One line: what happens, and what to write.
        why: The evidence, one line.
        others: Other calls that belong to it: where an operand was made.
        line: A line of the cell instead of that of the call; None for that.
        lines: Further lines of the cell.
    """

    call: "ReadCall"
    text: str
    why: str
    others: tuple["ReadCall", ...] = ()
    line: int | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Flow:
    """The calls of a trace, and its modules.

    Attributes:
        is_everything_own: Whether code of libraries counts as the user's own.
    """

    trace: "Trace"
    is_everything_own: bool = False
    _own_files: dict[str, bool] = field(default_factory=dict)

    @property
    def program(self) -> "Program":
        """The program, without a call that raised."""
        return self.trace.program

    @property
    def modules(self) -> "tuple[ModuleNode, ...]":
        """The roots of the modules."""
        return self.trace.modules

    @cached_property
    def calls(self) -> Calls:
        """All calls."""
        has_raised = self.program.raised is not None
        columns = read_columns(self.program) if has_raised else self.trace.columns
        return Calls(self.program, columns, self._is_own, self.axes.read)

    @cached_property
    def axes(self) -> Axes:
        """Which dimensions are the same; empty before ``follow_axes``."""
        return Axes(self.program.signatures)

    def follow_axes(self) -> None:
        """Find which dimensions are the same."""
        calls, step = self.calls, self.axes.step
        tensors, n_inputs = calls.tensors, calls.n_inputs
        is_followed = calls.is_among(FORWARD).tolist()
        starts = zip(calls.signature, calls.first, calls.first[1:], strict=False)
        for row, (number, start, end) in enumerate(starts):
            if is_followed[row]:
                middle = start + n_inputs[number]
                step(row, number, tensors[start:middle], tensors[middle:end])

    @cached_property
    def is_read(self) -> Flags:
        """Whether a call reads each tensor."""
        columns = self.calls.columns
        is_read = np.zeros(int(columns.tensor.max(initial=0)) + 1, np.bool_)
        is_read[columns.tensor[~columns.is_made]] = True
        return is_read

    @cached_property
    def read_by(self) -> dict[int, list[int]]:
        """For each tensor the calls that read it."""
        found: dict[int, list[int]] = defaultdict(list)
        columns = self.calls.columns
        is_read = ~columns.is_made
        tensors, rows = columns.tensor[is_read], columns.call[is_read]
        for tensor, row in zip(tensors.tolist(), rows.tolist(), strict=True):
            found[tensor].append(row)
        return found

    @cached_property
    def _made(self) -> list[int]:
        """For each tensor the call that first returned it; -1 for none."""
        columns = self.calls.columns
        made = np.full(int(columns.tensor.max(initial=0)) + 1, -1)
        is_made = columns.is_made[::-1]  # the last entry of a tensor stays
        made[columns.tensor[::-1][is_made]] = columns.call[::-1][is_made]
        found: list[int] = made.tolist()
        return found

    @cached_property
    def _writes(self) -> list[int]:
        """The later writes: the tensor times the number of calls, plus the call."""
        columns = self.calls.columns
        is_later = np.asarray(self._made)[columns.tensor] != columns.call
        rows = columns.is_written | (columns.is_made & is_later)
        keys = columns.tensor[rows].astype(np.int64) * len(self.calls)
        found: list[int] = np.sort(keys + columns.call[rows]).tolist()
        return found

    def is_written(self, storage: int, rows: range) -> bool:
        """Whether a call in ``rows`` writes a storage that another one made."""
        columns = self.calls.columns
        calls = columns.call[columns.is_written & (columns.storage == storage)]
        return bool(((calls >= rows.start) & (calls < rows.stop)).any())

    def _is_own(self, site: "CallSite") -> bool:
        if self.is_everything_own:
            return True
        if site.position is None:
            return False
        file = site.position.file
        if file not in self._own_files:
            self._own_files[file] = is_own_file(file)
        return self._own_files[file]

    def named(
        self,
        names: Collection[str],
        functions: Container[str] | None = None,
        *,
        is_own: bool = False,
    ) -> list[ReadCall]:
        """Return the calls of some operators in the forward: all, or the user's own.

        If functions of torch are named, only calls that these made.
        """
        found = self.calls.find(names, FORWARD, is_own=is_own, functions=functions)
        return [*found]

    @cached_property
    def first_own(self) -> list[ReadCall]:
        """The first call at each line of the user's own code."""
        _, rows = np.unique(self.calls.columns.call_site, return_index=True)
        found = [self.calls[row] for row in rows.tolist()]
        return [call for call in found if call.is_own]

    def maker(self, call: ReadCall, operand: int) -> ReadCall | None:
        """Return the call that made or last wrote an operand; None for none."""
        if operand >= len(call.inputs):
            return None
        tensor, index, n = call.inputs[operand], call.index, len(self.calls)
        before = bisect_left(self._writes, tensor * n + index) - 1
        written, row = divmod(self._writes[before], n) if before >= 0 else (-1, -1)
        if written != tensor:
            row = self._made[tensor]
        return self.calls[row] if 0 <= row < index else None

    def origin(
        self, call: ReadCall, operand: int, is_passed: Callable[[ReadCall], bool]
    ) -> ReadCall | None:
        """Return the call that made an operand, before the calls that hand it on."""
        made = self.maker(call, operand)
        while made is not None and is_passed(made):
            if not made.inputs:
                break
            made = self.maker(made, 0)
        return made if made is not None and made.phase in FORWARD else None

    @cached_property
    def module_calls(self) -> ModuleCalls:
        """The module calls."""
        return ModuleCalls(self.program)

    @cached_property
    def _module_rows(self) -> "NDArray[np.uint32]":
        words = np.frombuffer(self.program.module_rows, np.uint32)
        return words.reshape(-1, MODULE_HEADER)

    @cached_property
    def outer_calls(self) -> "list[ModuleCall]":
        """The module calls that ran in no other one."""
        rows = np.flatnonzero(self._module_rows[:, 1] == 0)
        return [self.module_calls[row] for row in rows.tolist()]

    def find_layers(self, classes: Collection[str]) -> "Iterator[ModuleCall]":
        """Yield the module calls of some classes."""
        is_meant = [last_part(one[2]) in classes for one in self.program.modules]
        if any(is_meant):
            numbers = self._module_rows[:, 0]
            for row in np.flatnonzero(np.asarray(is_meant)[numbers]).tolist():
                yield self.module_calls[row]

    @cached_property
    def nodes(self) -> "dict[tuple[int | None, str | None], ModuleNode]":
        """The modules by root and name."""
        return {
            (number, node.fqn): node
            for number, root in enumerate(self.modules)
            for node in root.walk()
        }

    @cached_property
    def module_names(self) -> set[str]:
        """The last part of the name of each module, unless a tensor has it, too."""
        names, tensors = set[str](), set[str]()
        for root in self.modules:
            for node in root.walk():
                names.add((node.fqn or root.name).rpartition(".")[2])
                tensors.update(one.name.rpartition(".")[2] for one in node.tensors)
        return names - tensors

    @cached_property
    def steps(self) -> list[ReadCall]:
        """The calls that begin a step of an optimizer."""
        return [*self._find_recorded("Optimizer.step")]

    @cached_property
    def clears(self) -> list[ReadCall]:
        """The calls that begin a ``zero_grad`` of an optimizer."""
        return [*self._find_recorded("Optimizer.zero_grad")]

    def _find_recorded(self, name: str) -> Iterator[ReadCall]:
        marks = self.calls.find((RECORDED,))
        return (c for c in marks if str(c.arguments.get("name")).startswith(name))

    @cached_property
    def backwards(self) -> list[ReadCall]:
        """The first call of each backward pass."""
        starts = self.calls.find(("ones_like",))
        return [call for call in starts if call.function == "backward"]

    @cached_property
    def trained(self) -> set[int]:
        """The storages of the parameters that got a gradient."""
        return {storage for _, storage in self.program.facts.accumulated}

    @cached_property
    def storages(self) -> memoryview:
        """The storage of each tensor."""
        return memoryview(self.program.storage_by_tensor).cast("I")

    @cached_property
    def differentiated(self) -> set[int]:
        """The calls that autograd can go back through."""
        data = np.frombuffer(self.program.facts.differentiated, np.uint32)
        return {*data.tolist()}

    def find_built(self, call: ReadCall) -> int | None:
        """Return the line at which the module of a call is built, if it is clear.

        A module such as ``nn.Softmax`` runs no operator while it is built: the line is
        looked up in the source, by the name of the class, then by that of the module.
        """
        position = call.position
        if call.module_call is None or position is None:
            return None
        within = self.module_calls[call.module_call]
        node = self.nodes.get((within.root, within.module))
        kind = "" if node is None or node.definition is None else node.definition.path
        if not kind.startswith("torch.nn."):
            return None
        name = last_part(within.class_name)
        attribute = (within.module or "").rpartition(".")[2]
        found = [
            (node.lineno, names)
            for node, names in list_built("".join(getlines(position.file)))
            if name_of(node.func) == name
        ]
        if len(found) > 1:
            found = [(line, names) for line, names in found if attribute in names]
        if len(found) != 1:
            return None
        return found[0][0] + (call.line or position.line) - position.line


@lru_cache(maxsize=8)
def list_nodes(text: str) -> list[ast.AST]:
    """Return the nodes of a source, outer ones first; [] if it is none of Python."""
    try:
        return [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):
        return []


@lru_cache(maxsize=8)
def list_built(text: str) -> list[tuple[ast.Call, set[str]]]:
    """Return the calls in a source, each with the names that its result gets."""
    names: dict[int, set[str]] = {}
    for node in list_nodes(text):
        if isinstance(node, ast.Assign):
            targets = {name_of(target) for target in node.targets}
            names.update((id(part), targets) for part in ast.walk(node.value))
    nodes = [node for node in list_nodes(text) if isinstance(node, ast.Call)]
    return [(node, names.get(id(node), set())) for node in nodes]


def last_part(name: str) -> str:
    """Return the last part of a name such as ``torch.nn.Linear``."""
    return name.rpartition(".")[2]


def name_of(node: ast.expr) -> str:
    """Return the last part of a name such as ``nn.Softmax``; "" for other code."""
    return getattr(node, "attr", getattr(node, "id", ""))


def is_view(call: ReadCall) -> bool:
    """Whether the result of a call is elements of its first operand."""
    return call.name in VIEWS


def is_dropout(call: ReadCall) -> bool:
    """Whether a call multiplies by the mask of a dropout."""
    return call.name == "native_dropout" or (
        call.function == "dropout" and call.name in {"mul", "div"}
    )
