"""Rules about the order of statements in the source of a training loop.

What they look for runs no operator, as the step of a schedule, or no operator shows it.
A loop is one in which an optimizer steps, as it was recorded. Read
:func:`list_loops` first.
"""

import ast
from collections.abc import Iterator
from functools import lru_cache
from linecache import getlines
from typing import Final, NamedTuple, TypeAlias

from meta_magic.cost.wrong.flow import Flow, Mistake, list_nodes, name_of, name_set
from meta_magic.cost.wrong.read_calls import ReadCall

Repeating: TypeAlias = ast.For | ast.While

AVERAGING: Final = name_set("Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop")
"""Optimizers that average gradients over their steps."""


class Source(NamedTuple):
    """The source around the step of an optimizer.

    Attributes:
        step: The first call of the step.
        line: Its line in the file.
        loops: The loops around it, the outermost first.
    """

    step: ReadCall
    line: int
    text: str
    loops: list[Repeating]

    def make_mistake(self, node: ast.stmt, text: str, why: str) -> Mistake:
        """Return a mistake at a statement, in lines of the cell."""
        shift = (self.step.line or self.line) - self.line
        return Mistake(self.step, text, why, line=node.lineno + shift)


def list_loops(flow: Flow) -> Iterator[Source]:
    """Yield the loops around steps of optimizers, once for each innermost loop."""
    seen = set[tuple[str, int]]()
    for step in flow.steps:
        at = step.position
        if at is None or not step.is_own or (at.file, at.line) in seen:
            continue
        seen.add((at.file, at.line))
        text, line = "".join(getlines(at.file)), at.line
        found = [node for node in list_nodes(text) if isinstance(node, Repeating)]
        loops = [one for one in found if one.lineno < line <= (one.end_lineno or 0)]
        loops.sort(key=lambda loop: loop.lineno)
        if loops:
            yield Source(step, line, text, loops)


@lru_cache(maxsize=8)
def find_schedules(text: str) -> tuple[str, ...]:
    """Return the names that a source gives schedules of learning rates."""
    return tuple(
        ast.unparse(target)
        for node in (list_nodes(text) if "lr_scheduler" in text else ())
        if isinstance(node, ast.Assign) and "lr_scheduler" in ast.unparse(node.value)
        for target in node.targets
    )


def find_early_schedules(flow: Flow) -> Iterator[Mistake]:
    """Yield loops in which a schedule steps before its optimizer."""
    for source in list_loops(flow):
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
    for source in list_loops(flow):
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


def find_fresh_optimizers(flow: Flow) -> Iterator[Mistake]:
    """Yield optimizers that are made anew for each step of the same module."""
    for source in list_loops(flow):
        loop = source.loops[-1]
        assigned = {
            name.id
            for name in ast.walk(loop)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        for node in loop.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            made = node.value
            names = {one.id for one in ast.walk(made) if isinstance(one, ast.Name)}
            is_meant = name_of(made.func) in AVERAGING and not names & assigned
            if is_meant and ".parameters()" in ast.unparse(made):
                yield source.make_mistake(
                    node,
                    f"makes {name_of(made.func)} anew for each step: its averages of "
                    "gradients begin at zero each time; make it before the loop",
                    f"it steps at line {source.step.line} of the same loop",
                )


def find_repeated_layers(flow: Flow) -> Iterator[Mistake]:
    """Yield ``nn.Sequential(*[nn.Linear(8, 8)] * 3)``: one layer three times."""
    names = ("empty", "ones", "zeros", "randn")
    calls = {id(c.site): c for c in flow.calls.find(names, ("init",), is_own=True)}
    for call in calls.values():
        position = call.position
        if position is None:
            continue
        at = position.line, position.column or 0
        for node in list_products("".join(getlines(position.file))):
            end = node.end_lineno or 0, node.end_col_offset or 0
            if (node.lineno, node.col_offset) <= at < end:
                yield Mistake(
                    call,
                    f"{ast.unparse(node)[:60]} is one layer several times, with the "
                    "same parameters: a comprehension makes several",
                    "multiplying a list repeats its elements, and copies none",
                )
                break


@lru_cache(maxsize=8)
def list_products(text: str) -> list[ast.BinOp]:
    """Return the lists of new objects in a source that a ``Sequential`` repeats."""
    return [
        node.value
        for made in (list_nodes(text) if "Sequential(*" in text else ())
        if isinstance(made, ast.Call) and name_of(made.func) == "Sequential"
        for node in made.args
        if isinstance(node, ast.Starred)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.left, ast.List)
        and any(isinstance(one, ast.Call) for one in node.value.left.elts)
    ]
