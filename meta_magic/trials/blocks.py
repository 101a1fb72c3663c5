"""The statements, variables and sizes of a recorded block, so that it can run again.

A block ``batch = 8; x = torch.randn(batch, 3)`` is to run with ``batch = 16``: its
text is parsed (:func:`parse_block`), its variables get the values from before the
recording (:func:`restore_variables`), and :func:`set_sizes` binds ``batch`` to 16
after each assignment. :func:`list_sizes` finds the names that can be varied.

``GPTConfig(n_embd=64)`` and ``n_embd: int = 64`` in a dataclass name a number without a
variable, and so do ``B=8`` for the one 8 in the code and ``B=3:14`` for the number at
line 3, column 14: :func:`find_constants` finds it, and another number is put there.
"""

import ast
import linecache
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from traceback import walk_stack
from types import CodeType
from typing import Any, Final, TypeAlias, cast

import torch

from meta_magic.errors import TrialError
from meta_magic.session.record import record
from meta_magic.trace.options import Modes, Rerun, read_modes

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements with variables of their own."""

Sizes: TypeAlias = Mapping[str, int]
"""By name, the value that replaces its own."""

Entered: TypeAlias = ast.With | ast.FunctionDef | ast.AsyncFunctionDef
"""A statement with a body; the last one of a path has the block."""


def parse_block(rerun: Rerun, text: str | None = None) -> ast.Module:
    """Return the statements of a block.

    ``text`` replaces that of the cell, or of the file that has the block.
    """
    if rerun.text is not None:
        block = ast.parse(rerun.text if text is None else text, rerun.file)
        end_with_value(block.body)
        return block
    text = text or "".join(linecache.getlines(rerun.file))
    if not text:
        raise TrialError("its source is not known")
    path = find_path(ast.parse(text, rerun.file), rerun)
    if not path:
        raise TrialError(f"line {rerun.line} of {rerun.file} is no `with record()`")
    entered, others = path[-1], list_others(path[-1], rerun)
    body = entered.body
    if others:  # contexts beside ``record()``
        body = [ast.copy_location(ast.With(items=others, body=body), entered)]
    block = ast.Module(body=body, type_ignores=[])
    end_with_value(block.body)
    try:
        compile(block, rerun.file, "exec")
    except SyntaxError as error:  # a return, a yield
        raise TrialError(f"it cannot run by itself: {error.msg}") from None
    return block


def end_with_value(body: list[ast.stmt]) -> None:
    """Make a block that returns at its end one that may stand outside of a function."""
    last = body[-1] if body else None
    if isinstance(last, ast.Return):
        value = last.value or ast.Constant(None)
        body[-1] = ast.fix_missing_locations(ast.copy_location(ast.Expr(value), last))
    if isinstance(last, (ast.With, ast.If)):
        end_with_value(last.body)
        end_with_value(getattr(last, "orelse", []))


def find_path(tree: ast.Module, rerun: Rerun) -> list[Entered]:
    """Return the statement that has a block in its body, after those around it.

    It is a ``with`` statement, or the function of a test, whose body then ends before
    the first statement that asks the recording.
    """
    found: list[Entered] = []

    def visit(node: ast.AST, above: list[Entered]) -> None:
        nonlocal found
        path = above
        if isinstance(node, (ast.stmt, ast.excepthandler)):
            path = [*above, cast("Entered", node)]
            found = path if _is_entered(node, rerun) else found
        for child in ast.iter_child_nodes(node):
            visit(child, path)

    visit(tree, [])
    if found and isinstance(found[-1], FUNCTIONS):
        asking = (
            at
            for at, node in enumerate(found[-1].body)
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and one.id == rerun.asked_by
        )
        found[-1].body = found[-1].body[: next(asking, None)]
        found = found if found[-1].body else []
    return found


def _is_entered(node: ast.AST, rerun: Rerun) -> bool:
    """Whether a statement is that which was recorded."""
    if isinstance(node, FUNCTIONS) and rerun.asked_by is not None:
        first = min(one.lineno for one in (node, *node.decorator_list))
        return first == rerun.line
    return (
        isinstance(node, ast.With)
        and rerun.asked_by is None
        and (
            node.lineno == rerun.line or node.lineno <= rerun.line < node.body[0].lineno
        )
    )


def list_others(entered: Entered, rerun: Rerun) -> list[ast.withitem]:
    """Return the other contexts of a ``with record()``."""
    if not isinstance(entered, ast.With) or len(entered.items) == 1:
        return []
    others = [item for item in entered.items if not _is_recording(item, rerun)]
    if len(others) != len(entered.items) - 1:
        raise TrialError("it is not known which of its contexts is `record()`")
    return others


def _is_recording(item: ast.withitem, rerun: Rerun) -> bool:
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
    """Set torch's global modes as they were around a block, for good; runs in a child.

    The inference mode must be set already.
    """
    torch.set_grad_enabled(modes.is_grad_enabled)
    torch.set_default_dtype(modes.dtype)
    for then, now in zip(modes.autocast, read_modes().autocast, strict=True):
        device, is_enabled, dtype = then
        if then != now:
            torch.autocast(device, dtype, is_enabled).__enter__()


def restore_variables(
    rerun: Rerun,
    block: ast.Module,
    sizes: Mapping[str, int],
    bound: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return a block's variables with their values before it ran; runs in a child.

    ``sizes`` are values that replace those of names, ``bound`` the names that the block
    binds, if they are known: only these have another value now.
    """
    variables = of_module = vars(sys.modules[rerun.module])
    of_module.update({n: size for n, size in sizes.items() if n not in rerun.local})
    if rerun.function is not None:
        variables = of_module | _find_locals(rerun.function)
    if bound is None:
        bound = find_bound(ast.Module(split_modules(rerun, block.body)[1], []))
    for name in rerun.names:
        try:
            variables[name] = rerun.before[name].read()
        except LookupError:  # not there before, or gone
            if name in bound:
                variables.pop(name, None)
    variables.update(sizes)
    return variables


def split_modules(
    rerun: Rerun, body: Sequence[ast.stmt]
) -> tuple[dict[str, list[ast.stmt]], list[ast.stmt]]:
    """Return the statements of the user's modules, by name, and those of the cells."""
    by_module: dict[str, list[ast.stmt]] = {}
    own: list[ast.stmt] = []
    for node in body:
        line = node.lineno
        names = [one.name for one in rerun.modules if one.first <= line <= one.last]
        (by_module.setdefault(names[0], []) if names else own).append(node)
    return by_module, own


def split_block(block: ast.Module, line: int) -> tuple[ast.Module, ast.Module]:
    """Return the statements before a line, and those from it on.

    A statement that has the line within holds both: its body is split.
    """
    before, own = [], []
    for node in block.body:
        if node.lineno >= line:
            own.append(node)
        elif (node.end_lineno or 0) < line:
            before.append(node)
        else:
            body = ast.Module(getattr(node, "body", []), [])
            earlier, rest = split_block(body, line)
            before += earlier.body
            if isinstance(node, ast.With):  # contexts of the block
                rest.body = [ast.copy_location(ast.With(node.items, rest.body), node)]
            own += rest.body
    return ast.Module(before, []), ast.Module(own, [])


def _find_locals(code: CodeType) -> dict[str, Any]:
    frames = (frame for frame, _ in walk_stack(sys._getframe()))
    return next(({**one.f_locals} for one in frames if one.f_code is code), {})


def find_bound(block: ast.Module) -> set[str]:
    """Return the names that a block may bind."""
    names: set[str] = set()
    for node in ast.walk(block):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                names.add(node.id)
        elif isinstance(node, SCOPES):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def is_variable(rerun: Rerun, block: ast.Module, name: str) -> bool:
    """Whether a name is a variable of a block, outside of its functions."""
    return name in rerun.before or name in _find_assigned(block)


def _find_assigned(node: ast.AST) -> set[str]:
    names = set[str]()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif not isinstance(child, SCOPES):
            names |= _find_assigned(child)
    return names


ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def set_sizes(block: ast.Module, sizes: Mapping[str, int]) -> ast.Module:
    """Return a block in which names have other values.

    Each statement that binds such a name is followed by an assignment of the new value;
    a loop over the name begins with that assignment; ``:=`` assigns the new value.
    """
    _resize(block, sizes)
    return ast.fix_missing_locations(block)


def _resize(node: Any, sizes: Mapping[str, int]) -> None:
    if isinstance(node, ast.NamedExpr) and node.target.id in sizes:
        node.value = ast.Constant(sizes[node.target.id])
    for name, value in ast.iter_fields(node):
        nodes = value if isinstance(value, list) else [value]
        for item in nodes:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                _resize(item, sizes)
        if nodes and isinstance(nodes[0], ast.stmt):
            whole: list[ast.stmt] = []
            for one in nodes:
                whole.append(one)
                if isinstance(one, ASSIGNMENTS):
                    whole += _assign_sizes(one, one, sizes)
            setattr(node, name, whole)
    if isinstance(node, ast.For):
        node.body[:0] = _assign_sizes(node.target, node, sizes)


def _assign_sizes(
    target: ast.AST, where: ast.stmt, sizes: Mapping[str, int]
) -> Iterator[ast.stmt]:
    """Yield an assignment for each of the sizes that a target binds."""
    names = (node for node in ast.walk(target) if isinstance(node, ast.Name))
    for name in names:
        if isinstance(name.ctx, ast.Store) and name.id in sizes:
            value = ast.Constant(sizes[name.id])
            yield ast.copy_location(ast.Assign([name], value), where)


def list_sizes(rerun: Rerun) -> dict[str, int]:
    """Return the positive integers that a block reads by name, without running it.

    A name that the block does not bind has its value from before the block. A name that
    the block binds counts only if it is bound once, to a plain number.
    """
    block = parse_block(rerun)
    names = [node for node in ast.walk(block) if isinstance(node, ast.Name)]
    n_bound = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
    known = {n: former.kept for n, former in rerun.before.items() if former.is_plain}
    for name in find_bound(block):
        known.pop(name, None)
    known |= {name: n.value for name, n in _list_assigned(block) if n_bound[name] == 1}
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {name: n for name, n in known.items() if name in read and as_size(n)}


def find_numbers(block: ast.Module, name: str) -> list[ast.Constant]:
    """Return the numbers that a block assigns to a name outside of functions."""
    return [one for own, one in _list_assigned(block) if own == name]


def _list_assigned(block: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    """Yield the names that are assigned a constant outside of functions."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            for name, value in list_named(node):
                if isinstance(value, ast.Constant):
                    yield name, value
        if not isinstance(node, SCOPES):
            yield from _list_assigned(node)


def as_size(value: object) -> int | None:
    """Return a value if it is a positive integer, else None."""
    return value if type(value) is int and value > 0 else None


def label(spec: str) -> str:
    """Return the name of a ``NAME`` or a ``NAME=VALUE``."""
    return spec.partition("=")[0]


def find_constants(block: ast.Module, spec: str) -> list[ast.Constant]:
    """Return the positive integers in a block that a name stands for.

    Args:
        block: Its statements.
        spec: ``NAME``, or ``NAME=VALUE`` where a number has no such name, or where the
            name has several numbers; or ``NAME=LINE:COLUMN``, the column in UTF-8 bytes
            from 0, for the number that begins there.

    Returns:
        Numbers of one value; those that a call or an assignment gives come before
        defaults of functions and classes. Empty if there are none.

    Raises:
        TrialError: They have several values, or a literal is there more than once.
    """
    name, _, wanted = spec.partition("=")
    if ":" in wanted:
        sizes = _sort([one for one in ast.walk(block) if _is_size(one, "")])
        return [one for one in sizes if write_spot(one) == wanted]
    for walk in (_walk_given, _walk_defaults):
        found = [one for one in walk(block, name) if _is_size(one, wanted)]
        if found:
            return check_same(name, found)
    if not wanted:
        return []
    literals = [one for one in ast.walk(block) if _is_size(one, wanted)]
    if len(literals) > 1:
        lines = ", ".join(str(one.lineno) for one in _sort(literals))
        raise TrialError(
            f"the block has {wanted} {len(literals)} times (lines {lines}): "
            f"write it as a variable {name}"
        )
    return _sort(literals)


def write_spot(node: ast.expr) -> str:
    """Return where an expression begins, as ``LINE:COLUMN``."""
    return f"{node.lineno}:{node.col_offset}"


def move_spot(spec: str, n_lines: int) -> str:
    """Return a name for a block that stands some lines further down."""
    name, _, spot = spec.partition("=")
    line, colon, column = spot.partition(":")
    return f"{name}={int(line) + n_lines}:{column}" if colon else spec


def name_spot(block: ast.Module, line: int, column: int) -> str:
    """Return how :func:`find_constants` is asked for the number at a position.

    The name is that of the argument or variable that is given the number, else the
    called function with the argument's position, as in ``Linear[0] (line 3)``.
    """
    spot = f"{line}:{column}"
    name = ""
    for node in ast.walk(block):
        given = [*list_named(node)]
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            given += [(f"{function}[{at}]", one) for at, one in enumerate(node.args)]
        for own, value in given:
            if isinstance(value, ast.Constant) and write_spot(value) == spot:
                name = own
    return f"{name} (line {line})={spot}" if name else f"line {line}={spot}"


def list_named(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that a node of a syntax tree binds, with their values."""
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if isinstance(node.target, ast.Name):
            yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pair_targets(target, node.value)


def _pair_targets(
    target: ast.expr, value: ast.expr | None
) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of an assignment, each with its own expression."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pair_targets(one, other)
    elif isinstance(target, ast.Name) and value is not None:
        yield target.id, value


def _is_size(node: object, wanted: str) -> bool:
    """Whether a node of a syntax tree is a positive integer, and the wanted one."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    return str(node.value) == wanted if wanted else node.value > 0


def _sort(nodes: Sequence[ast.AST]) -> list[ast.Constant]:
    constants = [one for one in nodes if isinstance(one, ast.Constant)]
    return sorted(constants, key=lambda one: (one.lineno, one.col_offset))


def check_same(name: str, found: Sequence[ast.AST]) -> list[ast.Constant]:
    """Return the numbers of a name; raise TrialError if they are not the same."""
    constants = _sort(found)
    by_value: dict[object, int] = {}
    for one in constants:
        by_value.setdefault(one.value, one.lineno)
    if len(by_value) > 1:
        listed = ", ".join(f"{value!r} in line {at}" for value, at in by_value.items())
        raise TrialError(
            f"{name} has several values: {listed}. Name one, as in "
            f"{name}={constants[0].value!r}"
        )
    return constants


def _walk_given(block: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield what calls, attributes, dictionaries and functions' variables are given."""
    for node in ast.walk(block):
        if isinstance(node, ast.keyword) and node.arg == name:
            yield node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == name:
                    yield node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value
        elif isinstance(node, FUNCTIONS):
            named = (pair for below in ast.walk(node) for pair in list_named(below))
            yield from (value for own, value in named if own == name and value)


def _walk_defaults(block: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield the defaults of classes, functions and options of a command line."""
    for node in ast.walk(block):
        if isinstance(node, ast.ClassDef):
            named = (pair for below in ast.walk(node) for pair in list_named(below))
            yield from (value for own, value in named if own == name and value)
        elif isinstance(node, ast.arguments):
            pairs = pair_defaults(node)
            yield from (default for argument, default in pairs if argument.arg == name)
        elif isinstance(node, ast.Call) and _is_option(node, name):
            yield from (one.value for one in node.keywords if one.arg == "default")


def pair_defaults(node: ast.arguments) -> list[tuple[ast.arg, ast.expr]]:
    """Return the arguments of a function that have defaults, with these."""
    args = [*node.posonlyargs, *node.args]
    pairs = [*zip(args[len(args) - len(node.defaults) :], node.defaults, strict=True)]
    named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
    return [*pairs, *((argument, value) for argument, value in named if value)]


def _is_option(call: ast.Call, name: str) -> bool:
    """Whether a call adds an option of that name to a command line."""
    flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return getattr(call.func, "attr", "") == "add_argument" and any(
        str(flag).lstrip("-").replace("-", "_") == name for flag in flags
    )
