"""The user's names of a failed call's operands, and of the module that made the call.

"dimension 1 of x" helps the user; "dimension 1 of tensor 17" does not. An operand has
the name that the failing line gives it, or else the code that made it, with its line.
"""

import ast
import linecache
import re
from dataclasses import replace
from itertools import islice
from typing import Final

from torch import Tensor

from meta_magic.session.operand_names import NUMBER
from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import UNNAMED, FailedCall
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace

ASSIGNED: Final = re.compile(r"[\w., ]+ = ")

MAX_BACK: Final = 1000
"""How many calls back the maker of an operand is looked for."""


def describe_module(trace: Trace) -> str:
    """Return class and name of the module in which the failed call was made."""
    call = trace.ops[-1] if len(trace.ops) else None
    if call is None or not call.raised or call.module_call is None:
        return ""
    within = trace.module_calls[call.module_call]
    root = None if within.root is None else trace.modules[within.root]
    name = ".".join(part for part in (root.name if root else "", within.module) if part)
    return f"{within.class_name} `{name}`" if name else within.class_name


def name_operands(trace: Trace, failed: FailedCall) -> FailedCall:
    """Return a call whose operands all have names.

    An operand that is written as a call, as ``model(x)``, keeps its maker as an alias.
    """
    at = failed.frames[-1] if failed.frames else None
    is_alone = failed.function is Tensor.__bool__
    operands = []
    for operand in failed.operands:
        made = find_maker(trace, operand.tensor)
        module = "" if made is None else made.module or ""
        if made is not None and module and made.root is not None:  # ``model.layers[0]``
            root = trace.modules[made.root]
            module = NUMBER.sub(r"[\1]", f"{root.name or root.class_name}.{module}")
        name = _find_name(at, made, module, is_alone=is_alone)
        aliases = operand.aliases
        if "(" in operand.name and name not in {UNNAMED, operand.name}:
            aliases = (*aliases, name)
        named = operand.name or name
        operands.append(replace(operand, name=named, aliases=aliases))
    return replace(failed, operands=tuple(operands))


def _find_name(
    at: SourcePosition | None, made: OpCall | None, module: str, *, is_alone: bool
) -> str:
    """Return the name of a tensor, by the call that made it.

    Args:
        at: Call site of the failed call.
        made: The call that returned the tensor, if it is known.
        module: How code writes the module that made the call; "" for none.
        is_alone: Whether the tensor is the whole expression there.
    """
    if made is None or made.position is None:
        return UNNAMED
    if made.position == at:  # within the same expression, by a module in it
        whole = read_text(at) if is_alone else UNNAMED
        return f"what {module} returned" if module else whole
    name = read_text(made.position) or UNNAMED
    is_near = at is not None and at.line == made.position.line
    return name if is_near else f"{name} (line {made.position.line})"


def find_maker(trace: Trace, tensor: int) -> OpCall | None:
    """Return the call that returned a tensor, if it is one of the last ones."""
    for call in islice(reversed(trace.ops), MAX_BACK):
        if any(output.tensor_id == tensor for output in call.outputs):
            return call
    return None


def name_result(position: SourcePosition | None) -> str:
    """Return the name that a statement gives its result, or writes; "" for none.

    This is the target of an assignment, without its index, or the receiver of a method.
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
    """Return the code at a call site; of several lines the first."""
    if position is None:
        return ""
    line = linecache.getline(position.file, position.line).rstrip("\n").encode()
    is_whole = position.line == position.end_line
    end = position.end_column if is_whole else None
    more = "" if is_whole else " ..."
    return line[position.column : end].decode(errors="replace").strip() + more


def read_assigned(position: SourcePosition | None) -> str:
    """Return the code at a call site, after the names that it alone is assigned to."""
    text = read_text(position)
    if position is None or not text:
        return text
    line = linecache.getline(position.file, position.line).strip()
    before, _, after = line.partition(text)
    is_whole = not after.partition("#")[0].strip()
    return before + text if is_whole and ASSIGNED.fullmatch(before) else text
