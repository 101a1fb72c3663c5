"""Numbers that code names without a variable: arguments, fields, attributes, literals.

``GPTConfig(n_embd=64)`` and ``n_embd: int = 64`` in a dataclass name a number, and so
do ``B=8`` for the one 8 in the code and ``B=3:14`` for the number at line 3, column 14.
:func:`find_constants` finds it, so that a trial can put another number there.
"""

import ast
from collections.abc import Iterator

from meta_magic.errors import TrialError
from meta_magic.trials.blocks import FUNCTIONS, pair_targets


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
            return _check_same(name, found)
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
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from pair_targets(target, node.value)


def _is_size(node: object, wanted: str) -> bool:
    """Whether a node of a syntax tree is a positive integer, and the wanted one."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    return str(node.value) == wanted if wanted else node.value > 0


def _sort(nodes: list[ast.AST]) -> list[ast.Constant]:
    constants = [one for one in nodes if isinstance(one, ast.Constant)]
    return sorted(constants, key=lambda one: (one.lineno, one.col_offset))


def _check_same(name: str, found: list[ast.AST]) -> list[ast.Constant]:
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
            yield from _walk_assigned(node, name)


def _walk_defaults(block: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield the defaults of classes, functions and options of a command line."""
    for node in ast.walk(block):
        if isinstance(node, ast.ClassDef):
            yield from _walk_assigned(node, name)
        elif isinstance(node, ast.arguments):
            args = [*node.posonlyargs, *node.args]
            pairs = zip(args[len(args) - len(node.defaults) :], node.defaults)  # noqa: B905  as long
            named = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            for argument, default in (*pairs, *named):
                if argument.arg == name and default is not None:
                    yield default
        elif isinstance(node, ast.Call) and _is_option(node, name):
            yield from (one.value for one in node.keywords if one.arg == "default")


def _walk_assigned(scope: ast.stmt, name: str) -> Iterator[ast.AST]:
    """Yield the values that a function's or a class's own variable is assigned."""
    for node in ast.walk(scope):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            pairs = pair_targets(target, node.value)  # type: ignore[attr-defined]  # an assignment
            yield from (value for own, value in pairs if own == name)


def _is_option(call: ast.Call, name: str) -> bool:
    """Whether a call adds an option of that name to a command line."""
    flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return getattr(call.func, "attr", "") == "add_argument" and any(
        str(flag).lstrip("-").replace("-", "_") == name for flag in flags
    )
