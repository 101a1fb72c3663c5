"""The sizes that a block's text names: positive integers behind names that it reads."""

import ast
import linecache
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

import torch

from meta_magic.errors import TrialError
from meta_magic.session.record import record
from meta_magic.trace.rerun import Modes, Rerun, read_modes


def parse_block(rerun: Rerun, text: str | None = None) -> ast.Module:
    """Return the statements of a block.

    Args:
        rerun: What is known of it.
        text: Another one that it has instead, or that its file has.

    Raises:
        TrialError: Its text is not known, or cannot stand by itself.
    """
    if rerun.text is not None:
        return ast.parse(rerun.text if text is None else text, rerun.file)
    text = text or "".join(linecache.getlines(rerun.file))
    if not text:
        raise TrialError("its source is not known")
    entered = [
        node
        for node in ast.walk(ast.parse(text, rerun.file))
        if isinstance(node, ast.With) and begins_at(node, rerun.line)
    ]
    if not entered:
        raise TrialError(f"line {rerun.line} of {rerun.file} is no `with record()`")
    block = ast.Module(body=strip_recording(entered[-1], rerun), type_ignores=[])
    try:
        compile(block, rerun.file, "exec")
    except SyntaxError as error:  # a return, a yield
        raise TrialError(f"it cannot stand by itself: {error.msg}") from None
    return block


def begins_at(node: ast.With, line: int) -> bool:
    """Whether a ``with`` statement enters its contexts at a line."""
    return node.lineno <= line < node.body[0].lineno or node.lineno == line


def strip_recording(entered: ast.With, rerun: Rerun) -> list[ast.stmt]:
    """Return what a ``with record()`` runs, in the other contexts that it enters.

    Raises:
        TrialError: Which of them the recording is cannot be told.
    """
    others = [item for item in entered.items if not is_recording(item, rerun)]
    if len(entered.items) == 1:
        return entered.body
    if len(others) != len(entered.items) - 1:
        raise TrialError("which of its contexts is `record()` cannot be told")
    return [ast.copy_location(ast.With(items=others, body=entered.body), entered)]


def is_recording(item: ast.withitem, rerun: Rerun) -> bool:
    """Whether a context of a block is the recording itself."""
    if not isinstance(item.context_expr, ast.Call):
        return False
    first, *rest = ast.unparse(item.context_expr.func).split(".")
    former = rerun.before.get(first)
    try:
        value = getattr(sys.modules[rerun.module], first, None)
        value = value if former is None else former.read()
    except LookupError:  # it is gone
        return False
    for name in rest:
        value = getattr(value, name, None)
    return value is record


def enter_modes(modes: Modes) -> None:
    """Tell torch what it was told around a block, for good; to be called in a child.

    The inference mode is to be as it was already.
    """
    torch.set_grad_enabled(modes.is_grad_enabled)
    torch.set_default_dtype(modes.dtype)
    for then, now in zip(modes.autocast, read_modes().autocast, strict=True):
        device, is_enabled, dtype = then
        if then != now:
            torch.autocast(device, dtype, is_enabled).__enter__()


def restore_variables(
    rerun: Rerun, block: ast.Module, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the variables of a block as they were; to be called in a child.

    Args:
        rerun: What is known of them.
        block: The block: what it does not bind is still as it was.
        sizes: Values that names have instead.
    """
    variables = of_module = vars(sys.modules[rerun.module])
    of_module.update({n: size for n, size in sizes.items() if n not in rerun.local})
    if rerun.function is not None:
        variables = of_module | find_locals(rerun.function)
    changed = find_bound(block)
    for name in rerun.names:
        try:
            variables[name] = rerun.before[name].read()
        except LookupError:  # not there before, or gone
            if name in changed:
                variables.pop(name, None)
    variables.update(sizes)
    return variables


def find_locals(code: CodeType) -> dict[str, Any]:
    """Return the variables of a function as they are, if this is called from it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else {**frame.f_locals}


def find_unbound(rerun: Rerun, name: str) -> Any:
    """Return what a name stands for that a block reads and does not bind, or None."""
    former = rerun.before.get(name)
    if former is None or name in find_bound(parse_block(rerun)):
        return None
    return former.kept if former.is_plain else None


def find_bound(block: ast.Module) -> set[str]:
    """Return the names that a block may bind."""
    names = {
        node.id
        for node in ast.walk(block)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names |= {node.name for node in ast.walk(block) if isinstance(node, defined)}
    aliases = (node for node in ast.walk(block) if isinstance(node, ast.alias))
    return names | {(a.asname or a.name).partition(".")[0] for a in aliases}


SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""In them names are others."""

ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def set_sizes(block: ast.Module, sizes: Mapping[str, int]) -> ast.Module:
    """Return a block in which names have other values.

    Behind each of its statements that binds one of them, it is bound to that value; in
    the body of a loop that does, at its beginning.

    Args:
        block: Statements, with their lines; it is changed.
        sizes: The value of each name.
    """
    resize(block, sizes)
    return ast.fix_missing_locations(block)


def resize(node: Any, sizes: Mapping[str, int]) -> None:
    """Bind names anew in the statements of a node, and in those below it."""
    for name, value in ast.iter_fields(node):
        nodes = value if isinstance(value, list) else []
        for item in nodes:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                resize(item, sizes)
        if nodes and isinstance(nodes[0], ast.stmt):
            setattr(node, name, list(bind_anew(nodes, sizes)))
    if isinstance(node, ast.For):
        node.body[:0] = bind(node.target, node, sizes)


def bind_anew(
    statements: list[ast.stmt], sizes: Mapping[str, int]
) -> Iterator[ast.stmt]:
    """Yield statements, and behind those that bind a name one that does so anew."""
    for statement in statements:
        yield statement
        if isinstance(statement, ASSIGNMENTS):
            yield from bind(statement, statement, sizes)


def bind(
    target: ast.AST, where: ast.stmt, sizes: Mapping[str, int]
) -> Iterator[ast.stmt]:
    """Yield an assignment for each of the names that a target binds."""
    names = (node for node in ast.walk(target) if isinstance(node, ast.Name))
    for name in names:
        if isinstance(name.ctx, ast.Store) and name.id in sizes:
            value = ast.Constant(sizes[name.id])
            yield ast.copy_location(ast.Assign([name], value), where)


def list_sizes(rerun: Rerun) -> dict[str, int]:
    """Return the positive integers that a block reads by name, without running it.

    Those that it does not bind are as they were before it; of those that it binds only
    the ones are known that it binds to a number as such, and once.

    Raises:
        TrialError: Its text is not known, or cannot stand by itself.
    """
    block = parse_block(rerun)
    names = [node for node in ast.walk(block) if isinstance(node, ast.Name)]
    n_bound = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
    known = {n: former.kept for n, former in rerun.before.items() if former.is_plain}
    for name in find_bound(block):
        known.pop(name, None)
    known |= {name: n for name, n in list_assigned(block) if n_bound[name] == 1}
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {name: n for name, n in known.items() if name in read and as_size(n)}


def list_assigned(block: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield names that are assigned a constant outside of functions, and that."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pair(target, node.value)
        elif not isinstance(node, SCOPES):
            yield from list_assigned(node)


def pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, object]]:
    """Yield the names of a target that a constant is assigned to, and that."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pair(one, other)
    elif isinstance(target, ast.Name) and isinstance(value, ast.Constant):
        yield target.id, value.value


def as_size(value: object) -> int | None:
    """Return a value if it is a positive integer, else None."""
    return value if type(value) is int and value > 0 else None
