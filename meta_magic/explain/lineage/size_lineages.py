"""Where sizes come from: chains of calls back to the numbers that a block says.

In the child that ran the block with traced numbers: each step is found by making its
call again with other numbers, and no rule of any operator is written here.
"""

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from meta_magic.explain.lineage.call_probes import CallProbe
from meta_magic.explain.lineage.formulas import Formula
from meta_magic.explain.lineage.lineage_records import Lineage, Step
from meta_magic.explain.lineage.number_names import Names
from meta_magic.explain.lineage.observed_calls import Call, Node
from meta_magic.explain.lineage.traced_block import Literal
from meta_magic.explain.lineage.traced_numbers import (
    LEAST_LOST,
    SizeOf,
    Worked,
    Written,
    origin_of,
    strip,
    trace_number,
)
from meta_magic.recording.identities.function_names import describe_function

__all__ = ["Lineages", "Unresolved", "write_root"]

MAX_NESTED: Final = 3
"""How deep arithmetic stands in one step: that of a loop has no end."""

MAX_STEPS: Final = 200
"""How many steps a chain has."""


class Unresolved(NamedTuple):
    """A size that a call made, of which it is not known by which formula.

    Attributes:
        step: Which step of a chain it is.
        call: Which call, among the observed ones.
        output: Which of the tensors that it returned.
        dim: Which dimension.
    """

    step: int
    call: int
    output: int
    dim: int


class Described(NamedTuple):
    """A number, and what it comes from.

    Attributes:
        step: It, without its parts.
        parts: The numbers that it comes from.
    """

    step: Step
    parts: Sequence[Any] = ()


class Lineages:
    """Finds where the numbers of one run come from.

    Args:
        literals: The numbers that the block says.
        names: What numbers and tensors are called.
    """

    def __init__(self, literals: Sequence[Literal], names: Names) -> None:
        self._literals = literals
        self._names = names
        self._probes: dict[Call, CallProbe] = {}
        self._formulas: dict[object, Formula] = {}
        self._found: dict[tuple[Call, tuple[int, int]], Formula] = {}

    def why_size(
        self, name: str, node: Node, dim: int
    ) -> tuple[Lineage, tuple[Unresolved, ...]]:
        """Return where a size of a tensor comes from.

        Args:
            name: What it is called.
            node: The tensor.
            dim: Its dimension, from 0.
        """
        return self.why(name, trace_number(node.shape[dim], SizeOf(node, dim)))

    def why(self, name: str, number: Any) -> tuple[Lineage, tuple[Unresolved, ...]]:
        """Return where a traced number comes from, and what of it is not known."""
        places: dict[object, int] = {}
        met: list[Any] = []

        def place(found: Any) -> int:
            last = self._follow(found)
            if key_of(last) not in places:
                places[key_of(last)] = len(met)
                met.append(last)
            return places[key_of(last)]

        place(number)
        steps: list[Step] = []
        unresolved = []
        while len(steps) < min(len(met), MAX_STEPS):
            step, parts = self._describe(met[len(steps)])
            step = replace(step, parts=tuple(map(place, parts)))
            if is_unknown(step, met[len(steps)]):
                unresolved.append(refer_to(len(steps), met[len(steps)]))
            steps.append(step)
        left = len(met) - len(steps)
        caveat = f"what comes after {MAX_STEPS} steps is left out" if left else ""
        whole = (cut(step, len(steps)) for step in steps) if left else steps
        return Lineage(name=name, steps=tuple(whole), caveat=caveat), (*unresolved,)

    def _follow(self, number: Any) -> Any:
        """Return the number that another one is, handed on by calls unchanged."""
        while True:
            call = call_of(number)
            if call is None:
                return number
            formula = self._find_formula(call, number.origin)
            if not formula.hands_on:
                return number
            number = self._probe(call).given[formula.parts[0]]

    def _describe(self, number: Any) -> Described:
        """Return a number that no call hands on, and what it comes from."""
        value, origin = strip(number), origin_of(number)
        match origin:
            case Written(at):
                return Described(self._describe_literal(number, self._literals[at]))
            case SizeOf(node, dim) if node.call is not None:
                return self._describe_call(number, node.call)
            case SizeOf(node, dim):
                name = self._names.name_tensor(node.tensor)
                text = f"dimension {dim} of {name}, from outside of the block"
                return Described(Step(value=value, text=text, formula=f"{value}"))
            case Worked(formula, parts):
                name = self._names.name_number(number)
                formula, below = self._put_in(formula, parts)
                shown = formula.format(*map(strip, below))
                text = f"{name} = {shown}" if name else shown
                return Described(Step(value=value, text=text, formula=formula), below)
        text = "a number of unknown origin"
        return Described(Step(value=value, text=text, formula=f"{value}"))

    def _put_in(
        self, formula: str, parts: Sequence[Any], depth: int = MAX_NESTED
    ) -> tuple[str, Sequence[Any]]:
        """Return arithmetic with that of its parts in it, of those without a name."""
        whole: list[Any] = []
        texts = []
        for part in parts:
            origin = origin_of(part)
            is_named = bool(self._names.name_number(part))
            if isinstance(origin, Worked) and depth and not is_named:
                inner, below = self._put_in(*origin, depth - 1)
                texts.append(f"({inner})" if is_loose(inner, formula) else inner)
                whole += below
            else:
                texts.append("{}")
                whole.append(part)
        return formula.format(*texts), whole

    def _describe_literal(self, number: Any, literal: Literal) -> Step:
        """Return a number that the block says."""
        label, name = literal.label, self._names.name_number(number)
        if name and (not label.isidentifier() or name.endswith(f".{label}")):
            label = name
        return write_root(literal, label)

    def _describe_call(self, number: Any, call: Call) -> Described:
        """Return a size that a call made."""
        formula = self._find_formula(call, number.origin)
        given = self._probe(call).given
        parts = [given[variable] for variable in formula.parts]
        values = [strip(part) for part in parts]
        text = f"by {name_function(call.function)}"
        if formula.text and values:
            text = f"{formula.text.format(*values)} {text}"
        elif values:
            text += f", from {', '.join(map(str, values))}"
        value = strip(number)
        step = Step(value=value, text=text, line=call.line, formula=formula.text)
        return Described(step, parts)

    def _find_formula(self, call: Call, origin: SizeOf) -> Formula:
        """Return how a size comes from what its call was given."""
        at = origin.tensor.output, origin.dim
        if (call, at) not in self._found:
            probe = self._probe(call)
            key = probe.tie(lambda number: key_of(self._follow(number))), at
            if key not in self._formulas:  # else the same call, as in an earlier layer
                self._formulas[key] = probe.find_formula(*origin)
            self._found[call, at] = self._formulas[key]
        return self._found[call, at]

    def _probe(self, call: Call) -> CallProbe:
        probe = self._probes.get(call)
        if probe is None:
            probe = self._probes[call] = CallProbe(call)
        return probe


def write_root(literal: Literal, label: str) -> Step:
    """Return the step of a number that the block says, by what it is called there."""
    return Step(
        value=literal.value,
        formula=f"{literal.value}",
        text=f"{label}, written" if label else "written",
        line=literal.line,
        column=literal.column,
        end_column=literal.end_column,
    )


def is_loose(inner: str, outer: str) -> bool:
    """Whether arithmetic needs brackets in other arithmetic."""
    within, around = (
        ast.parse(text.replace("{}", "n"), mode="eval").body for text in (inner, outer)
    )
    if not isinstance(within, (ast.BinOp, ast.UnaryOp)):
        return False
    is_same = isinstance(around, ast.BinOp) and type(around.op) is type(within.op)
    return not (is_same and isinstance(within.op, (ast.Add, ast.Mult)))


def call_of(number: Any) -> Call | None:
    """Return the call that made a tensor whose size a number is, if it is one."""
    origin = origin_of(number)
    return origin.tensor.call if isinstance(origin, SizeOf) else None


def key_of(number: Any) -> object:
    """Return what tells numbers apart: two of equal arithmetic are not the same."""
    origin = origin_of(number)
    return origin if isinstance(origin, (Written, SizeOf)) else id(number)


def is_unknown(step: Step, number: Any) -> bool:
    """Whether it is not known what a size that a call made comes from.

    What no number moves may be of the library's own, or come from one that was lost.
    """
    is_constant = bool(step.formula) and step.value < LEAST_LOST
    return not (step.parts or is_constant) and call_of(number) is not None


def refer_to(step: int, number: Any) -> Unresolved:
    """Return which call made a size that stands at a step."""
    node, dim = number.origin
    return Unresolved(step, node.call.index, node.output, dim)


def cut(step: Step, n_steps: int) -> Step:
    """Return a step without the parts that a chain has no room for."""
    return replace(step, parts=tuple(part for part in step.parts if part < n_steps))


def name_function(function: Any) -> str:
    """Return what a function of torch is called, in short."""
    name = describe_function(function) or ""
    parts = [part for part in name.split(".") if part != "__get__"]
    return parts[-1] if parts else ""
