"""The calls of a program with what rules ask of them, and the mistakes of rules.

Read :class:`Flow` first.
"""

import ast
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from linecache import getlines
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meta_magic.cost.advice.evidence import is_own_file
from meta_magic.cost.wrong.axes import Axes
from meta_magic.cost.wrong.read_calls import Call
from meta_magic.trace.formulas.operands import short_name
from meta_magic.trace.program import HEADER
from meta_magic.trace.sequences import ModuleCalls, call_of

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program
    from meta_magic.trace.signature import CallSite


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

MAX_TURNS: Final = 16
"""So many calls of a line that are alike are followed: a loop has many more."""

STOPPED: Final = -1
"""The number of the call that made a tensor from outside of the block."""


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

    call: "Call"
    text: str
    why: str
    others: tuple["Call", ...] = ()
    line: int | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Flow:
    """The calls of a program, and its modules.

    Attributes:
        program: The program.
        modules: Its module trees.
        is_everything_own: Whether code of libraries counts as the user's own.
        calls: All calls.
        axes: Which dimensions are the same; empty before ``follow_axes``.
        made: For each tensor the call that first returned it.
        written: For each tensor the later calls that wrote it.
    """

    program: "Program"
    modules: "tuple[ModuleNode, ...]"
    is_everything_own: bool = False
    calls: list[Call] = field(default_factory=list)
    axes: Axes = field(default_factory=Axes)
    made: dict[int, int] = field(default_factory=dict)
    written: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls.extend(self._read())

    def follow_axes(self) -> None:
        """Find which dimensions are the same."""
        turns: dict[tuple[int, int], int] = defaultdict(int)
        last: dict[tuple[int, int], Call] = {}
        for call in self.calls:
            if call.phase in FORWARD:
                alike = id(call.site), id(call.signature)
                turns[alike] += 1
                if turns[alike] <= MAX_TURNS:
                    self.axes.step(call)
                    last[alike] = call
                else:
                    self.axes.repeat(call, last[alike])

    @cached_property
    def read_by(self) -> dict[int, list[int]]:
        """For each tensor the calls that read it."""
        found: dict[int, list[int]] = defaultdict(list)
        for call in self.calls:
            for tensor in call.inputs:
                found[tensor].append(call.index)
        return found

    def _read(self) -> Iterator[Call]:
        program, made, written = self.program, self.made, self.written
        words = memoryview(program.words).cast("I").tolist()
        sites = [None, *program.call_sites]
        functions = [(s.function or "").rpartition(".")[2] if s else "" for s in sites]
        own = [s is not None and self._is_own(s) for s in sites]
        phases = ["other" if s is None else s.phase for s in sites]
        facts = [
            ((s, short_name(s.op), dict(s.arguments)), len(s.inputs), s.writes)
            for s in program.signatures
        ]
        made_at = [*zip(sites, functions, phases, strict=True)]
        offsets = program.offsets
        for index in range(program.n_calls):
            offset = offsets[index]
            number, at, module_word = words[offset : offset + 3]
            fact, n_inputs, writes = facts[number]
            middle = offset + HEADER + n_inputs
            inputs = words[offset + HEADER : middle]
            outputs = words[middle : offsets[index + 1]]
            for number in writes:
                written.setdefault(inputs[number], []).append(index)
            for tensor in outputs:
                if made.setdefault(tensor, index) != index:
                    written.setdefault(tensor, []).append(index)
            module = call_of(module_word)
            yield Call(index, *fact, *made_at[at], inputs, outputs, module, own[at])

    def _is_own(self, site: "CallSite") -> bool:
        if self.is_everything_own:
            return True
        return site.position is not None and is_own_file(site.position.file)

    @cached_property
    def by_name(self) -> dict[str, list[Call]]:
        """The calls by the operator's name."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.name].append(call)
        return found

    def named(self, names: Collection[str]) -> list[Call]:
        """Return the calls of some operators in the forward, in order."""
        found = [call for name in names for call in self.by_name.get(name, ())]
        forward = (call for call in found if call.phase in FORWARD)
        return sorted(forward, key=lambda call: call.index)

    def maker(self, call: Call, operand: int) -> Call | None:
        """Return the call that made or last wrote an operand; None for none."""
        if operand >= len(call.inputs):
            return None
        tensor, index = call.inputs[operand], call.index
        rows = self.written.get(tensor, ())
        before = bisect_left(rows, index)
        row = rows[before - 1] if before else self.made.get(tensor, index)
        return None if row >= index else self.calls[row]

    def origin(
        self, call: Call, operand: int, is_passed: Callable[[Call], bool]
    ) -> Call | None:
        """Return the call that made an operand, before the calls that hand it on.

        Args:
            call: The call that reads it.
            operand: Its index.
            is_passed: Whether a call hands its first operand on.
        """
        made = self.maker(call, operand)
        while made is not None and is_passed(made):
            if not made.inputs:
                break
            made = self.maker(made, 0)
        return made if made is not None and made.phase in FORWARD else None

    @cached_property
    def module_calls(self) -> "list[ModuleCall]":
        """The module calls."""
        return [*ModuleCalls(self.program)]

    @cached_property
    def nodes(self) -> "dict[tuple[int, str], ModuleNode]":
        """The modules by root and name."""
        return {
            (number, node.fqn): node
            for number, root in enumerate(self.modules)
            for node in root.walk()
        }

    @cached_property
    def differentiated(self) -> set[int]:
        """The calls that autograd can go back through."""
        data = np.frombuffer(self.program.facts.differentiated, np.uint32)
        return {*data.tolist()}

    def _is_torchs(self, module_call: int) -> bool:
        """Whether a module that was called is of a class of torch."""
        within = self.module_calls[module_call]
        if within.root is None or within.module is None:
            return False
        node = self.nodes.get((within.root, within.module))
        definition = None if node is None else node.definition
        return definition is not None and definition.path.startswith("torch.nn.")

    def find_built(self, call: Call) -> int | None:
        """Return the line at which the module of a call is built, if it is clear.

        A module such as ``nn.Softmax`` runs no operator while it is built: the line is
        looked up in the source, by the name of the class, then by that of the module.
        """
        if call.module_call is None or call.site is None or call.site.position is None:
            return None
        if not self._is_torchs(call.module_call):
            return None
        within, position = self.module_calls[call.module_call], call.site.position
        name = within.class_name.rpartition(".")[2]
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
def list_built(text: str) -> list[tuple[ast.Call, set[str]]]:
    """Return the calls in a source, each with the names that its result gets."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    names: dict[int, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = {name_of(target) for target in node.targets}
            names.update((id(part), targets) for part in ast.walk(node.value))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(node, names.get(id(node), set())) for node in nodes]


def name_of(node: ast.expr) -> str:
    """Return the last part of a name such as ``nn.Softmax``; "" for other code."""
    return getattr(node, "attr", getattr(node, "id", ""))


def is_view(call: Call) -> bool:
    """Whether the result of a call is elements of its first operand."""
    return call.name in VIEWS


def is_dropout(call: Call) -> bool:
    """Whether a call multiplies by the mask of a dropout."""
    return call.name == "native_dropout" or (
        call.function == "dropout" and call.name in {"mul", "div"}
    )
