"""Edits of a program that may mend its backward pass, or what autograd refuses."""

import ast
import re
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
import torch

from meta_magic.cost.asked_autograd import find_saved_slots
from meta_magic.cost.saved_storages import SEED
from meta_magic.explain.edits.program_text import (
    Called,
    Edit,
    Program,
    join_edits,
    sort_edits,
)
from meta_magic.explain.edits.situations import Situation
from meta_magic.explain.given_names import name_result, read_text
from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.graphs import find_edges
from meta_magic.trace.modules import ModuleNode, ModuleTensor
from meta_magic.trace.signature import Geometry
from meta_magic.trace.trace import Trace

IN_PLACE: Final = "modified by an inplace operation"
"""In torch's words for what was written after it was saved."""

UNUSED: Final = "appears to not have been used"
"""In torch's words for what is not in the graph that is asked."""

MAX_NAMES: Final = 4

MAX_CALLS: Final = 20_000
"""How many operators are looked at."""


class Finding(NamedTuple):
    """What is wrong with a graph.

    Attributes:
        rule: It, in a sentence.
        kind: ``cut``, ``freed``, or ``written``.
        line: The line of the cell where it was done, if that is one.
        operands: The tensors that it is about.
    """

    rule: str
    kind: Literal["cut", "freed", "written"]
    line: int | None
    operands: tuple[Operand, ...] = ()


def is_backward(failed: FailedCall) -> bool:
    """Whether a call was to go back through a graph."""
    return failed.function in {torch.Tensor.backward, torch.autograd.grad}


class Backward:
    """Looks for why a backward pass failed.

    Args:
        trace: The trace that it ended.
        failed: The pass, with what it began at.
    """

    def __init__(self, trace: Trace, failed: FailedCall) -> None:
        calls = trace.ops if len(trace.ops) <= MAX_CALLS else ()
        self._calls = [call for call in calls if not call.raised]
        self._signatures = [
            trace.program.signatures[number]
            for number in trace.program.signature_numbers()
        ]
        nodes = {*np.frombuffer(trace.program.facts.differentiated, np.uint32).tolist()}
        made = {call.index for call in self._calls if call.inputs}
        self._differentiated = nodes & made  # the first call of all may be among them
        self._is_write = IN_PLACE in (trace.error or "")
        self._is_unused = UNUSED in (trace.error or "")
        self._trace = trace
        self._failed = failed

    def find(self) -> Finding | None:
        """Return what is wrong; None where that cannot be said."""
        if not (self._calls and self._failed.operands):
            return None
        if not self._failed.operands[0].requires_grad:
            return self._find_cut() or self._find_frozen()
        if self._is_unused:
            return self._find_cut()
        # Both may be true of a graph: which of them was met first, the error says.
        return self._find_written() if self._is_write else self._find_freed()

    def _find_cut(self) -> Finding | None:
        """Return where the graph was cut."""
        asked = {operand.tensor for operand in self._failed.operands[1:]}
        for call in self._ancestors:
            above = {self._sources[call.index, i] for i, _ in enumerate(call.inputs)}
            is_asked = any(tensor.tensor_id in asked for tensor in call.inputs)
            is_node = call.index in self._differentiated
            if not is_node and (above & self._differentiated or is_asked):
                rule = f"{tell(call)} cuts the graph: it detaches, or is under no_grad"
                return Finding(rule, "cut", call.line, describe_results(call))
        return None

    def _find_frozen(self) -> Finding | None:
        """Return what has no gradient of all that the result was made of."""
        name = self._failed.operands[0].name
        if self._differentiated & {call.index for call in self._ancestors}:
            return None
        frozen: list[Operand] = []
        for call in self._ancestors:
            node = find_module(self._trace, call)
            held = [] if node is None else node.tensors
            own = [tensor for tensor in held if tensor.kind == "parameter"]
            if any(tensor.requires_grad for tensor in own):
                rule = f"{tell(call)} ran under no_grad"
                return Finding(rule, "cut", call.line, describe_results(call))
            frozen += [describe_parameter(self._trace, call, tensor) for tensor in own]
        rule = f"{name} is made of nothing that requires a gradient"
        names = dict.fromkeys(operand.name for operand in frozen)
        told = f": not even {', '.join([*names][:MAX_NAMES])} do"
        more = told if frozen else ", or under no_grad"
        return Finding(rule + more, "cut", None, tuple(frozen[:MAX_NAMES]))

    def _find_freed(self) -> Finding | None:
        """Return which earlier pass went back through the same graph."""
        last = max((c.index for c in self._calls if is_first(c)), default=0)
        freed = {call.forward for call in self._calls[:last]}
        for call in self._ancestors:
            if call.index in freed and self._find_saved(call):
                rule = f"an earlier pass freed what {tell(call)} had saved"
                return Finding(rule, "freed", None, describe_results(call))
        return None

    def _find_written(self) -> Finding | None:
        """Return what was written after it was saved."""
        writers: dict[int, OpCall] = {}
        undone = {c.index for c in self._ancestors} & self._differentiated
        for call in reversed(self._calls):
            tensors = (*call.inputs, *call.outputs)
            slots = self._find_saved(call) if call.index in undone else []
            for slot in slots:
                writer = writers.get(tensors[slot].storage_id)
                if writer is not None:
                    saved = f"what {tell(call)} saved for backward"
                    rule = f"{tell(writer)} writes into {saved}"
                    written = describe_results(writer) + describe_results(call)
                    return Finding(rule, "written", writer.line, written)
            writers |= {call.inputs[i].storage_id: call for i in call.writes}
        return None

    def _find_saved(self, call: OpCall) -> list[int]:
        """Return which of a call's inputs, and outputs after them, autograd saves."""
        signature = self._signatures[call.index]
        return find_saved_slots(signature, [True] * len(signature.inputs))

    @cached_property
    def _sources(self) -> dict[tuple[int, int], int]:
        """Of each input of a call the call that made it, or wrote it last; or -1."""
        return {
            (edge.target, edge.input): -1 if edge.source is None else edge.source
            for edge in find_edges(self._calls)
        }

    @cached_property
    def _ancestors(self) -> list[OpCall]:
        """The calls that the result was made by, the newest first."""
        start = self._failed.operands[0].tensor
        made = [c for c in self._calls if any(o.tensor_id == start for o in c.outputs)]
        todo = [call.index for call in made[-1:]]
        met: set[int] = set()
        while todo:
            index = todo.pop()
            if index >= 0 and index not in met:
                met.add(index)
                n_inputs = len(self._calls[index].inputs)
                todo += [self._sources[index, i] for i in range(n_inputs)]
        return [self._calls[index] for index in sorted(met, reverse=True)]


def is_first(call: OpCall) -> bool:
    """Whether a call is none of a backward pass, or that with which one begins."""
    return call.phase != "backward" or call.op == SEED


def find_module(trace: Trace, call: OpCall) -> ModuleNode | None:
    """Return the module that a call was made in, None outside of modules."""
    roots = [] if call.root is None else [trace.modules[call.root]]
    nodes = (node for root in roots for node in root.walk())
    return next((node for node in nodes if node.fqn == call.module), None)


def describe_parameter(trace: Trace, call: OpCall, tensor: ModuleTensor) -> Operand:
    """Return a parameter of the module that a call was made in, as an operand."""
    root = "" if call.root is None else trace.modules[call.root].name
    parts = (root, call.module, tensor.name)
    geometry = Geometry(
        shape=tensor.shape,
        stride=None,
        storage_offset=None,
        dtype=tensor.dtype,
        device=tensor.device,
        layout=torch.strided,
    )
    return Operand(
        name=".".join(part for part in parts if part),
        aliases=(),
        tensor=-1,
        geometry=geometry,
        requires_grad=tensor.requires_grad,
        is_leaf=True,
    )


def describe_results(call: OpCall) -> tuple[Operand, ...]:
    """Return what a call made or wrote, by the name that its statement gives it."""
    name = name_result(call.position)
    made = call.outputs[:1] if name else ()
    return tuple(
        Operand(
            name=name,
            aliases=(),
            tensor=tensor.tensor_id,
            geometry=tensor.geometry,
            requires_grad=bool(tensor.requires_grad),
            is_leaf=False,
        )
        for tensor in made
    )


def tell(call: OpCall) -> str:
    """Return what the user wrote that a call came from, its line, and its module."""
    text = read_text(call.position) or call.function or call.op
    line = f"line {call.line}" if call.line else ""
    module = f"in `{call.module}`" if call.module else ""
    where = ", ".join(part for part in (line, module) if part)
    return f"{text} ({where})" if where else text


AT_LINE, ANYWHERE = 0.3, 0.6

REFUSED_COST: Final = 0.4

REFUSED: Final = re.compile(r"grad|leaf")
"""What errors say that are of autograd."""


def list_backward_edits(program: Program, finding: Finding) -> list[Edit]:
    """Return edits of a program that may mend what is wrong with its graph."""
    edits = {"cut": edit_cuts, "freed": retain_graphs, "written": avoid_writes}
    return sort_edits(edits[finding.kind](program, finding.line))


def edit_cuts(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits without what detaches: at the line that cut, then anywhere."""
    for node in program.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            cost = weigh(node, line)
            yield from program.replace(node, program.read(node.value), cost)
    for called in program.calls:
        cost = weigh(called.node, line)
        if called.name in {"detach", "item"} and called.owner is not None:
            yield from program.replace(called.node, program.read(called.owner), cost)
        if called.name == "no_grad":
            yield from program.rename(called, "enable_grad", cost)


def retain_graphs(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits by which what was saved is kept, or no earlier graph is gone through.

    The latter where a name is carried from one round of a loop to the next.
    """
    for called in program.calls:
        if called.name == "backward":
            cost = weigh(called.node, line)
            yield from program.add_argument(called.node, "retain_graph=True", cost)
    for node in program.find(ast.Assign):
        bound = {
            one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)
        }
        carried = [
            one
            for one in ast.walk(node.value)
            if isinstance(one, ast.Name) and one.id in bound
        ]
        edits = [e for one in carried for e in program.extend(one, "{}.detach()", 0)]
        yield join_edits(edits, ANYWHERE)


def walk_names(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in an expression."""
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Name))


def avoid_writes(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits that make something new in the place of a write."""
    for called in program.calls:
        name, owner = called.name, called.owner
        is_write = name.endswith("_") and not name.endswith("__")
        if is_write and owner is not None and called.node.lineno == line:
            made = program.read(called.node).replace(f".{name}(", f".{name[:-1]}(")
            is_alone = isinstance(next(program.walk_up(called.node), None), ast.Expr)
            target = f"{program.read(owner)} = " if is_alone else ""
            yield from program.replace(called.node, target + made, AT_LINE)
    for node in program.nodes:
        if getattr(node, "lineno", None) == line:
            yield from avoid_write(program, node)
        if isinstance(node, ast.keyword) and node.arg == "inplace":
            yield from program.replace(node.value, "False", ANYWHERE)


def avoid_write(program: Program, node: ast.AST) -> Iterator[Edit]:
    """Yield edits of a statement that writes."""
    if isinstance(node, ast.AugAssign):
        yield from program.replace(node, write_out(node), AT_LINE)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        name = program.read(node.targets[0].value)
        text = f"{name} = {name}.clone(); {program.read(node)}"
        yield from program.replace(node, text, AT_LINE)


def write_out(node: ast.AugAssign) -> str:
    """Return ``x = x + (y)`` for ``x += y``."""
    target = copy(node.target)
    target.ctx = ast.Load()
    made = ast.BinOp(target, node.op, node.value)
    return f"{ast.unparse(node.target)} = {ast.unparse(made)}"


def weigh(node: ast.expr, line: int | None) -> float:
    """Return what it counts where a node is."""
    return AT_LINE if node.lineno == line else ANYWHERE


def edit_refusals(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what autograd refuses: to write what it follows, or to read it."""
    if REFUSED.search(situation.error):
        for called in situation.program.calls:
            yield from leave_graph(situation, called)
        assigned = situation.find_near(ast.Assign)
        into = [n for n in assigned if isinstance(n.targets[0], ast.Subscript)]
        for node in (*into, *situation.find_near(ast.AugAssign)):
            text = f"with torch.no_grad(): {situation.program.read(node)}"
            yield from situation.program.replace(node, text, REFUSED_COST)


def leave_graph(situation: Situation, called: Called) -> Iterator[Edit]:
    """Yield edits of a call that autograd refuses."""
    program, owner = situation.program, called.owner
    cost = REFUSED_COST + situation.weigh(called.node)
    if owner is None:
        return
    if called.name == "numpy":
        yield from program.extend(owner, "{}.detach()", cost)
    elif called.name.endswith("_"):
        yield from program.extend(owner, "{}.data", cost)
    elif called.name == "backward":
        yield from program.extend(owner, "{}.mean()", cost)
        yield from program.extend(owner, "{}.sum()", cost + 0.1)
    elif called.name == "Parameter":
        yield from program.add_argument(called.node, "requires_grad=False", cost + 0.3)
