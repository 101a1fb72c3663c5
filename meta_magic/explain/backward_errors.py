"""Why a backward pass failed, and edits that may mend it.

"one of the variables needed for gradient computation has been modified by an inplace
operation" names no line. The recording does: it has the call that saved a tensor, and
the later call that wrote it. Three causes are read from the records, as making
``backward()`` again cannot find them: a saved tensor was written, an earlier pass freed
the graph, or the graph was cut. Read :meth:`Backward.find`.
"""

import ast
import re
from collections.abc import Collection, Iterator
from copy import copy
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
import torch

from meta_magic.cost.storage_lives import SEED, find_saved_slots
from meta_magic.explain.edits.program_text import (
    Called,
    Edit,
    SourceText,
    is_read,
    join_edits,
    sort_edits,
)
from meta_magic.explain.edits.situations import Situation
from meta_magic.explain.given_names import name_result
from meta_magic.session.operand_names import read_text
from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.graphs import find_edges
from meta_magic.trace.modules import ModuleNode, ModuleTensor
from meta_magic.trace.signature import Geometry
from meta_magic.trace.trace import Trace

IN_PLACE: Final = "modified by an inplace operation"
"""Part of torch's message if a saved tensor was written."""

SECOND: Final = "backward through the graph a second time"
"""Part of torch's message if an earlier pass freed what the graph had saved."""

UNUSED: Final = "appears to not have been used"
"""Part of torch's message if a gradient is asked for outside of the graph."""

MAX_NAMES: Final = 4

MAX_CALLS: Final = 20_000
"""A program with more operators is not read."""


class BrokenGraph(NamedTuple):
    """Why a graph cannot be followed back.

    Attributes:
        rule: The reason, in a sentence.
        kind: ``cut``, ``freed``, or ``written``.
        line: The line of the cell that did it, if it is one.
        operands: The tensors that the rule is about.
    """

    rule: str
    kind: Literal["cut", "freed", "written"]
    line: int | None
    operands: tuple[Operand, ...] = ()


def is_backward(failed: FailedCall) -> bool:
    """Whether a call follows a graph back."""
    return failed.function in {torch.Tensor.backward, torch.autograd.grad}


class Backward:
    """Looks for the reason why a backward pass failed.

    ``failed`` has the tensors that the pass began at.
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
        self._is_second = SECOND in (trace.error or "")
        self._trace = trace
        self._failed = failed

    def find(self) -> BrokenGraph | None:
        """Return what is wrong with the graph, if the records show it."""
        if not (self._calls and self._failed.operands):
            return None
        if not self._failed.operands[0].requires_grad:
            return self._find_cut() or self._find_frozen()
        if self._is_unused:
            return self._find_cut()
        # A graph may be both freed and written: torch's message says which came first.
        return self._find_written() if self._is_write else self._find_freed()

    def _find_cut(self) -> BrokenGraph | None:
        asked = {operand.tensor for operand in self._failed.operands[1:]}
        for call in self._ancestors:
            above = {self._sources[call.index, i] for i, _ in enumerate(call.inputs)}
            is_asked = any(tensor.tensor_id in asked for tensor in call.inputs)
            is_node = call.index in self._differentiated
            if not is_node and (above & self._differentiated or is_asked):
                name = _describe_call(call)
                rule = f"{name} cuts the graph: it detaches, or is under no_grad"
                return BrokenGraph(rule, "cut", call.line, _describe_results(call))
        return None

    def _find_frozen(self) -> BrokenGraph | None:
        """Return the parameters that a result depends on, if all are frozen."""
        name = self._failed.operands[0].name
        if self._differentiated & {call.index for call in self._ancestors}:
            return None
        frozen: list[Operand] = []
        for call in self._ancestors:
            node = _find_module(self._trace, call)
            held = [] if node is None else node.tensors
            own = [tensor for tensor in held if tensor.kind == "parameter"]
            if any(tensor.requires_grad for tensor in own):
                rule = f"{_describe_call(call)} ran under no_grad"
                return BrokenGraph(rule, "cut", call.line, _describe_results(call))
            frozen += [_describe_parameter(self._trace, call, tensor) for tensor in own]
        rule = f"{name} depends on no tensor that requires a gradient"
        names = dict.fromkeys(operand.name for operand in frozen)
        negation = f", not even on {', '.join([*names][:MAX_NAMES])}"
        more = negation if frozen else ", or was made under no_grad"
        return BrokenGraph(rule + more, "cut", None, tuple(frozen[:MAX_NAMES]))

    def _find_freed(self) -> BrokenGraph | None:
        """Return which call's saved tensors an earlier pass freed."""
        outside = (c for c in self._calls if c.phase != "backward" or c.op == SEED)
        last = max((call.index for call in outside), default=0)
        passed = {call.forward for call in self._calls[:last]}
        again = [call for call in self._graph if call.index in passed]
        # A call may save numbers alone, as ``y / 3``.
        spare = again[0] if again and self._is_second else None
        call = next(filter(self._find_saved, again), spare)
        if call is None:
            return None
        saved = f"the tensors that {_describe_call(call)} saved"
        rule = f"an earlier backward pass freed {saved}"
        return BrokenGraph(rule, "freed", None, _describe_results(call))

    def _find_written(self) -> BrokenGraph | None:
        """Return which call wrote a tensor that an earlier call had saved."""
        writers: dict[int, OpCall] = {}
        undone = {c.index for c in self._graph} & self._differentiated
        for call in reversed(self._calls):
            tensors = (*call.inputs, *call.outputs)
            slots = self._find_saved(call) if call.index in undone else []
            for slot in slots:
                writer = writers.get(tensors[slot].storage_id)
                if writer is not None:
                    saved = f"a tensor that {_describe_call(call)} saved for backward"
                    rule = f"{_describe_call(writer)} writes into {saved}"
                    written = _describe_results(writer) + _describe_results(call)
                    return BrokenGraph(rule, "written", writer.line, written)
            writers |= {call.inputs[i].storage_id: call for i in call.writes}
        return None

    def _find_saved(self, call: OpCall) -> list[int]:
        """Return which of a call's inputs, then of its outputs, autograd saves."""
        signature = self._signatures[call.index]
        return find_saved_slots(signature, [True] * len(signature.inputs))

    @cached_property
    def _sources(self) -> dict[tuple[int, int], int]:
        """By call and input, the call that made or last wrote the input, or -1."""
        return {
            (edge.target, edge.input): -1 if edge.source is None else edge.source
            for edge in find_edges(self._calls)
        }

    @cached_property
    def _ancestors(self) -> list[OpCall]:
        """The calls that the result depends on, the newest first."""
        return self._walk_back({call.index for call in self._calls})

    @cached_property
    def _graph(self) -> list[OpCall]:
        """The ancestors that no earlier backward pass or step lies between."""
        outside = {c.index for c in self._calls if c.phase in {"backward", "optimizer"}}
        every = {call.index for call in self._calls}
        return self._walk_back(every - outside | self._differentiated)

    def _walk_back(self, allowed: Collection[int]) -> list[OpCall]:
        start = self._failed.operands[0].tensor
        made = [c for c in self._calls if any(o.tensor_id == start for o in c.outputs)]
        todo = [call.index for call in made[-1:]]
        reached: set[int] = set()
        while todo:
            index = todo.pop()
            if index in allowed and index not in reached:
                reached.add(index)
                n_inputs = len(self._calls[index].inputs)
                todo += [self._sources[index, i] for i in range(n_inputs)]
        return [self._calls[index] for index in sorted(reached, reverse=True)]


def _find_module(trace: Trace, call: OpCall) -> ModuleNode | None:
    roots = [] if call.root is None else [trace.modules[call.root]]
    nodes = (node for root in roots for node in root.walk())
    return next((node for node in nodes if node.fqn == call.module), None)


def _describe_parameter(trace: Trace, call: OpCall, tensor: ModuleTensor) -> Operand:
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
        geometry=geometry,
        requires_grad=tensor.requires_grad,
    )


def _describe_results(call: OpCall) -> tuple[Operand, ...]:
    """Return a call's first result as an operand, if its statement names it."""
    name = name_result(call.position)
    made = call.outputs[:1] if name else ()
    return tuple(
        Operand(
            name=name,
            geometry=tensor.geometry,
            tensor=tensor.tensor_id,
            requires_grad=bool(tensor.requires_grad),
            is_leaf=False,
        )
        for tensor in made
    )


def _describe_call(call: OpCall) -> str:
    """Return the user's code that made a call, with its line and module."""
    text = read_text(call.position) or call.function or call.op
    line = f"line {call.line}" if call.line else ""
    module = f"in `{call.module}`" if call.module else ""
    where = ", ".join(part for part in (line, module) if part)
    return f"{text} ({where})" if where else text


AT_LINE, BETWEEN, ANYWHERE = 0.3, 0.5, 0.6
COPY: Final = "{}.clone()"

CARRIED: Final = (
    "{0}.detach()",
    "{0} and tuple(one.detach() for one in {0})",
    "None if {0} is None else {0}.detach()",
)
"""How a loop detaches what it carries over: a tensor; a tuple, or a tensor, that is
``None`` at first."""

LOOPS: Final = (ast.For, ast.While)

STEPS: Final = frozenset({"argmax", "bool", "ceil", "floor", "int", "long", "round"})
"""Methods without a gradient."""

REFUSED_COST: Final = 0.4

REFUSED: Final = re.compile(r"grad|leaf|converted to Scalar")
"""Parts of autograd's messages."""


def list_backward_edits(program: SourceText, broken: BrokenGraph) -> list[Edit]:
    """Return edits of a program that may mend its graph, the likeliest first."""
    edits = {"cut": _edit_cuts, "freed": _retain_graphs, "written": _avoid_writes}
    detached = _detach_results(program, broken) if broken.kind == "freed" else ()
    return sort_edits(edits[broken.kind](program, broken.line), detached)


def _edit_cuts(program: SourceText, line: int | None) -> Iterator[Edit]:
    """Yield edits that remove ``detach()``, ``.data`` and ``no_grad``."""
    for node in program.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            cost = _weigh(node, line)
            yield from program.replace(node, program.read(node.value), cost)
    for called in program.calls:
        cost = _weigh(called.node, line)
        if called.name in {"detach", "item"} and called.owner is not None:
            yield from program.replace(called.node, program.read(called.owner), cost)
        if called.name == "no_grad":
            yield from program.rename(called, "enable_grad", cost)
        if called.name in STEPS and called.owner is not None and cost == AT_LINE:
            yield from program.replace(called.node, program.read(called.owner), cost)
        if called.name == "requires_grad_" and called.node.args:
            yield from program.replace(called.node.args[0], "True", cost)
    yield from _edit_steps(program, line)


def _edit_steps(program: SourceText, line: int | None) -> Iterator[Edit]:
    """Yield edits that unfreeze, or compute with what a comparison compares."""
    for node in program.find(ast.Assign):
        target, value = node.targets[0], node.value
        is_frozen = isinstance(value, ast.Constant) and value.value is False
        if is_frozen and getattr(target, "attr", "") == "requires_grad":
            yield from program.replace(value, "True", ANYWHERE)
            loop = next(program.walk_up(node), None)
            if isinstance(loop, ast.For) and program.read(loop.iter).endswith("rs()"):
                # all but the last layer's weight and bias
                yield from program.extend(loop.iter, "[*{}][:-2]", ANYWHERE + 0.1)
    for compared in program.find(ast.Compare):
        around = next(program.walk_up(compared), None)
        cast = next(program.walk_up(around), None) if around is not None else None
        text = program.read(compared.left)
        if compared.lineno == line:
            yield from program.replace(compared, text, AT_LINE)
            if isinstance(around, ast.Attribute) and isinstance(cast, ast.Call):
                yield from program.replace(cast, text, AT_LINE)


def _retain_graphs(program: SourceText, line: int | None) -> Iterator[Edit]:
    """Yield edits that retain a graph, or detach a name that a loop carries over."""
    for called in program.calls:
        if called.name == "backward":
            cost = _weigh(called.node, line)
            yield from program.add_argument(called.node, "retain_graph=True", cost)
            owner = "" if called.owner is None else ast.unparse(called.owner)
            for added in program.find(ast.AugAssign):  # ``total += loss``
                if called.owner is not None and ast.unparse(added.target) == owner:
                    text = program.read(added.value)
                    yield from program.replace(called.owner, text, AT_LINE)
    for node in program.find(ast.Assign):
        bound = {
            one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)
        }
        carried = [
            one
            for one in ast.walk(node.value)
            if isinstance(one, ast.Name) and one.id in bound
        ]
        for at, text in enumerate(CARRIED if carried else ()):
            texts = [(one, text.format(one.id)) for one in carried]
            edits = [e for one, new in texts for e in program.replace(one, new, 0)]
            yield join_edits(edits, ANYWHERE + at / 10)


def _detach_results(program: SourceText, broken: BrokenGraph) -> Iterator[Edit]:
    """Yield edits that detach a result where it is an argument, but the last time.

    A discriminator takes ``fake.detach()`` before the generator is trained by it.
    """
    names = {operand.name for operand in broken.operands}
    arguments = [arg for called in program.calls for arg in called.node.args]
    read = [arg for arg in arguments if program.read(arg) in names]
    for arg in sorted(read, key=lambda arg: arg.lineno)[:-1]:
        yield from program.extend(arg, "{}.detach()", BETWEEN)


def _avoid_writes(program: SourceText, line: int | None) -> Iterator[Edit]:
    """Yield edits that make a new tensor instead of writing one."""
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
            yield from _avoid_write(program, node)
        if isinstance(node, ast.keyword) and node.arg == "inplace":
            yield from program.replace(node.value, "False", ANYWHERE)


def _avoid_write(program: SourceText, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign):
        target = copy(node.target)  # ``x = x + (y)`` for ``x += y``
        target.ctx = ast.Load()
        made = ast.unparse(ast.BinOp(target, node.op, node.value))
        text = f"{ast.unparse(node.target)} = {made}"
        yield from program.replace(node, text, AT_LINE)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        name = program.read(node.targets[0].value)
        text = f"{name} = {name}.clone(); {program.read(node)}"
        yield from program.replace(node, text, AT_LINE)
        around = (one for one in program.walk_up(node) if isinstance(one, LOOPS))
        read = [
            one
            for one in ast.walk(next(around, node))
            if isinstance(one, ast.Subscript)
            and is_read(one)
            and program.read(one.value) == name
        ]
        edits = [edit for one in read for edit in program.extend(one, COPY, 0)]
        yield join_edits(edits, AT_LINE)


def _weigh(node: ast.expr, line: int | None) -> float:
    return AT_LINE if node.lineno == line else ANYWHERE


def edit_refusals(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what autograd refuses, such as to write a leaf."""
    if REFUSED.search(situation.error):
        for called in situation.program.calls:
            yield from _leave_graph(situation, called)
        assigned = situation.find_near(ast.Assign)
        into = [n for n in assigned if isinstance(n.targets[0], ast.Subscript)]
        for node in (*into, *situation.find_near(ast.AugAssign)):
            text = f"with torch.no_grad(): {situation.program.read(node)}"
            yield from situation.program.replace(node, text, REFUSED_COST)


def _leave_graph(situation: Situation, called: Called) -> Iterator[Edit]:
    program, owner = situation.program, called.owner
    cost = REFUSED_COST + situation.weigh(called.node)
    if owner is None:
        return
    if called.name == "numpy":
        yield from program.extend(owner, "{}.detach()", cost)
    elif called.name.endswith("_"):
        yield from program.extend(owner, "{}.data", cost)
    elif called.name in {"backward", "item"}:
        yield from program.extend(owner, "{}.mean()", cost)
        yield from program.extend(owner, "{}.sum()", cost + 0.1)
    elif called.name == "Parameter":
        yield from program.add_argument(called.node, "requires_grad=False", cost + 0.3)
