"""Rules about the order of statements in the source of a training loop.

What they look for runs no operator, as the step of a schedule, or no operator shows it.
A loop is one in which an optimizer steps, as it was recorded. Read
:func:`list_loops` first.
"""

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from linecache import getlines
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from meta_magic.cost.wrong.flow import Flow, Mistake, list_nodes, name_of
from meta_magic.cost.wrong.read_calls import ReadCall
from meta_magic.trace.modules import CONTAINERS

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode

Repeating: TypeAlias = ast.For | ast.While


class Source(NamedTuple):
    """The source around a call.

    Attributes:
        step: The call: the first one of an optimizer's step, or of a file.
        file: The name of the file.
        line: Its line in the file.
        loops: The loops around it, the outermost first.
    """

    step: ReadCall
    file: str
    line: int
    text: str
    loops: list[Repeating]

    def make_mistake(self, node: ast.stmt | ast.Call, text: str, why: str) -> Mistake:
        """Return a mistake at a statement, in lines of the cell."""
        shift = (self.step.line or self.line) - self.line
        return Mistake(self.step, text, why, line=node.lineno + shift)


def list_loops(flow: Flow, may_have: Callable[[str], object]) -> Iterator[Source]:
    """Yield the loops around steps of optimizers, once for each innermost loop.

    A source that cannot have what is looked for, by its text, is not parsed.
    """
    seen = set[tuple[str, int]]()
    for step in flow.steps:
        at = step.position
        if at is None or not step.is_own or (at.file, at.line) in seen:
            continue
        seen.add((at.file, at.line))
        text, line = "".join(getlines(at.file)), at.line
        if not may_have(text):
            continue
        found = [node for node in list_nodes(text) if isinstance(node, Repeating)]
        loops = [one for one in found if one.lineno < line <= (one.end_lineno or 0)]
        loops.sort(key=lambda loop: loop.lineno)
        if loops:
            yield Source(step, at.file, line, text, loops)


@lru_cache(maxsize=8)
def find_schedules(text: str) -> tuple[str, ...]:
    """Return the names that a source gives schedules of learning rates."""
    return tuple(
        ast.unparse(target)
        for node in list_nodes(text)
        if isinstance(node, ast.Assign) and "lr_scheduler" in ast.unparse(node.value)
        for target in node.targets
    )


def find_early_schedules(flow: Flow) -> Iterator[Mistake]:
    """Yield loops in which a schedule steps before its optimizer."""
    for source in list_loops(flow, lambda text: "lr_scheduler" in text):
        steps = tuple(f"{name}.step(" for name in find_schedules(source.text))
        for node in [n for loop in source.loops for n in loop.body] if steps else ():
            is_before = (node.end_lineno or 0) < source.line
            is_call = is_before and isinstance(node, ast.Expr)
            if is_call and ast.unparse(node).startswith(steps):
                yield source.make_mistake(
                    node,
                    "the schedule steps before the optimizer: its first learning rate "
                    "is skipped; call it after optimizer.step()",
                    f"the optimizer steps at line {source.step.line}, later in the "
                    "same loop",
                )
                break


def find_useless_clips(flow: Flow) -> Iterator[Mistake]:
    """Yield gradients that are clipped before there are any, or while they are scaled.

    Only statements of one loop are compared, none in a branch or a loop within it. A
    scaler that is not enabled runs no operator.
    """
    has_scaler = any("unscale" in name for name in flow.calls.names)
    for source in list_loops(flow, lambda text: "clip_grad_" in text):
        body = source.loops[-1].body
        clips, backwards = (
            [k for k, node in enumerate(body) if text in ast.unparse(node)]
            for text in ("clip_grad_", ".backward(")
        )
        steps = [k for k, n in enumerate(body) if (n.end_lineno or 0) >= source.line]
        if len(clips) != 1 or len(backwards) != 1 or not steps:
            continue
        (clip,), (backward,) = clips, backwards
        is_scaled = ".scale(" in ast.unparse(body[backward])
        if clip < backward < steps[0]:
            yield source.make_mistake(
                body[clip],
                "clips gradients before backward() computes them: clip between "
                "backward() and step()",
                f"backward() comes at line {body[backward].lineno} of the source",
            )
        is_scaled = is_scaled and "unscale_(" not in ast.unparse(source.loops[-1])
        if has_scaler and is_scaled and backward < clip < steps[0]:
            yield source.make_mistake(
                body[clip],
                "clips gradients that are multiplied by the scale of the scaler: call "
                "scaler.unscale_(optimizer) before it",
                "step() divides by the scale after the norm was limited",
            )


def find_repeated_layers(flow: Flow) -> Iterator[Mistake]:
    """Yield ``nn.ModuleList([layer] * 3)``: one layer three times."""
    periods = {find_period(node) for root in flow.modules for node in root.walk()}
    files = dict[str, ReadCall]()
    makers = ("empty", "ones", "zeros", "randn") if periods - {0} else ()
    for call in flow.calls.find(makers, frozenset({"init"}), is_own=True):
        if call.position is not None:
            files.setdefault(call.position.file, call)
    for file, call in files.items():
        for node in list_products("".join(getlines(file))):
            line, at = call.line, call.position
            if len(getattr(node.left, "elts", ())) in periods and line and at:
                yield Mistake(
                    call,
                    f"{ast.unparse(node)[:60]} is one layer several times, with the "
                    "same parameters: a comprehension makes several",
                    "multiplying a list repeats its elements, and copies none",
                    line=node.lineno + line - at.line,
                )


def find_period(node: "ModuleNode") -> int:
    """Return after how many children of a container the same ones begin; 0 for none."""
    shared = [child.shared_with for child in node.children]
    n = next((k for k, name in enumerate(shared) if name is not None), 0)
    if not n or node.class_name not in CONTAINERS or not node.n_parameters:
        return 0
    names = [child.fqn for child in node.children[:n]] * len(shared)
    return n if shared[n:] == names[: len(shared) - n] else 0


@lru_cache(maxsize=8)
def list_products(text: str) -> list[ast.BinOp]:
    """Return the products of a list in a source that a container of modules gets."""
    return [
        node
        for made in list_nodes(text)
        if isinstance(made, ast.Call) and name_of(made.func) in CONTAINERS
        for given in made.args
        for node in [given.value if isinstance(given, ast.Starred) else given]
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.List)
    ]
