"""What the operands of a failed call are called, and the module that it was made in."""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from torch import Tensor

from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import UNNAMED, FailedCall
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

UNPACK: Final = "values to unpack"
"""In Python's words for what was bound to another number of names."""

MAX_BACK: Final = 1000
"""How many operators back an operand without a name is looked for."""


def describe_module(trace: Trace) -> str:
    """Return class and name of the module in which the failed call was made."""
    number = find_failing(trace)
    if number is None:
        return ""
    within = trace.module_calls[number]
    root = None if within.root is None else trace.modules[within.root]
    name = ".".join(part for part in (root.name if root else "", within.module) if part)
    return f"{within.class_name} `{name}`" if name else within.class_name


def find_failing(trace: Trace) -> int | None:
    """Return which call of a module the failed call was made in, if any."""
    call = trace.ops[-1] if len(trace.ops) else None
    return call.module_call if call is not None and call.raised else None


def name_operands(trace: Trace, failed: FailedCall) -> FailedCall:
    """Return a call whose operands have names: by what made them, if by nothing else.

    What made one that is written as a call, as ``model(x)``, is another name of it.
    """
    at = failed.frames[-1] if failed.frames else None
    is_alone = failed.function is Tensor.__bool__
    operands = []
    for operand in failed.operands:
        made = find_maker(trace, operand.tensor)
        name = find_name(at, made, is_alone=is_alone)
        aliases = operand.aliases
        if "(" in operand.name and name not in {UNNAMED, operand.name}:
            aliases = (*aliases, name)
        named = operand.name or name
        operands.append(replace(operand, name=named, aliases=aliases))
    return replace(failed, operands=tuple(operands))


def find_name(at: SourcePosition | None, made: OpCall | None, *, is_alone: bool) -> str:
    """Return what a tensor is called by the call that made it.

    Args:
        at: Where the failed call was made.
        made: What returned the tensor, if that is known.
        is_alone: Whether the expression there stands for the tensor.
    """
    if made is None or made.position is None:
        return UNNAMED
    if made.position == at:  # within the same expression, by a module in it
        module, whole = made.module, read_text(at) if is_alone else UNNAMED
        return f"what {module} returned" if module else whole
    name = read_text(made.position) or UNNAMED
    is_near = at is not None and at.line == made.position.line
    return name if is_near else f"{name} (line {made.position.line})"


def find_maker(trace: Trace, tensor: int) -> OpCall | None:
    """Return the call that returned a tensor, if that was not long ago."""
    for call in islice(reversed(trace.ops), MAX_BACK):
        if any(output.tensor_id == tensor for output in call.outputs):
            return call
    return None


def tell_returned(trace: Trace, failed: FailedCall) -> Iterator[str]:
    """Yield how many values a module returned, where they were not so many names."""
    at = failed.frames[-1] if failed.frames else None
    if at is None or failed.function is not None or UNPACK not in (trace.error or ""):
        return
    for call in islice(reversed(trace.module_calls), MAX_BACK):
        position = call.position
        if position is not None and is_within(position, at):
            shapes: dict[str, list[str]] = {}
            for path, tensor in call.outputs:
                first = path.partition(".")[0]
                shapes.setdefault(first, []).append(format_shape(tensor.shape))
            listed = "; ".join(" and ".join(part) for part in shapes.values())
            yield f"{read_text(position)} returned {len(shapes)} values: {listed}"
            return


def is_within(position: SourcePosition, other: SourcePosition) -> bool:
    """Whether a position stands in the line of another one."""
    return (position.file, position.line) == (other.file, other.line)


def name_result(position: SourcePosition | None) -> str:
    """Return what the statement at a position writes, or keeps its result in.

    The name that it binds, what has the item that it sets, or what it calls a method
    of; "" where that is nothing.
    """
    if position is None:
        return ""
    text = "".join(linecache.getlines(position.file))
    try:
        nodes = [
            node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)
        ]
    except SyntaxError:
        return ""
    ends = {node: node.end_lineno or 0 for node in nodes}
    near = [
        n for n in nodes if n.lineno <= position.line and ends[n] >= position.end_line
    ]
    node = max(near, key=lambda node: node.lineno, default=None)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        return ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    target = node.target if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else target
    while isinstance(target, ast.Subscript):
        target = target.value
    return "" if target is None else ast.unparse(target)


def read_text(position: SourcePosition | None) -> str:
    """Return the source at a position; of several lines the first."""
    if position is None:
        return ""
    line = linecache.getline(position.file, position.line).rstrip("\n").encode()
    is_whole = position.line == position.end_line
    end = position.end_column if is_whole else None
    more = "" if is_whole else " ..."
    return line[position.column : end].decode(errors="replace").strip() + more
