"""The user's names of a failed call's operands, and the lines that made them.

"dimension 1 of x" helps the user; "dimension 1 of tensor 17" does not. An operand has
the name that the failing line gives it, or else the code that made it, with its line
(:func:`name_operands`).

``fc(x)`` refuses ``x``: ``x = body(image).squeeze()`` made it two lines above, and the
function got ``image`` from ``predict(photo)``. Chains of sizes do not show that if a
dimension is lost, a dtype is wrong, or numbers come from a list. So names are followed
back (:class:`Trail`): to where they are bound, to the caller that passed them, to
the ``return`` of the user's function.
"""

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from torch import Tensor

from meta_magic.explain.edits.program_text import (
    Node,
    SourceText,
    is_read,
    name_of,
    span_of,
)
from meta_magic.session.operand_names import NUMBER, read_text
from meta_magic.trace.calls import ModuleCall, OpCall
from meta_magic.trace.failed_call import UNNAMED, FailedCall
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import pair_defaults

ASSIGNED: Final = re.compile(r"[\w., ]+ = ")

MAX_BACK: Final = 1000
"""How many calls back the maker of an operand is looked for."""


def _find_call(trace: Trace) -> ModuleCall | None:
    """Return the call of a module in which the failed call was made, if any."""
    call = trace.ops[-1] if len(trace.ops) else None
    number = call.module_call if call is not None and call.raised else None
    return None if number is None else trace.module_calls[number]


def describe_module(trace: Trace) -> str:
    """Return class and name of the module in which the failed call was made."""
    within = _find_call(trace)
    if within is None:
        return ""
    root = None if within.root is None else trace.modules[within.root]
    name = ".".join(part for part in (root.name if root else "", within.module) if part)
    return f"{within.class_name} `{name}`" if name else within.class_name


def name_operands(trace: Trace, failed: FailedCall) -> FailedCall:
    """Return a call whose operands all have names.

    An operand that is written as a call, as ``model(x)``, keeps its maker as an alias.
    """
    at = failed.frames[-1] if failed.frames else None
    is_alone = failed.function is Tensor.__bool__
    within = _find_call(trace)
    running = f"{within.module or ''}." if within else "."
    operands = []
    for operand in failed.operands:
        made = find_maker(trace, operand.tensor)
        module = "" if made is None else made.module or ""
        module = "" if running.startswith(f"{module}.") else module  # no result yet
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

    ``at`` is the call site of the failed call, ``module`` how code writes the module
    that made the tensor; ``is_alone`` says if it is the whole expression there.
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


def read_assigned(position: SourcePosition | None) -> str:
    """Return the code at a call site, after the names that it alone is assigned to."""
    text = read_text(position)
    if position is None or not text:
        return text
    line = linecache.getline(position.file, position.line).strip()
    before, _, after = line.partition(text)
    is_whole = not after.partition("#")[0].strip()
    return before + text if is_whole and ASSIGNED.fullmatch(before) else text


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS: Final[tuple[type[Function], ...]] = (ast.FunctionDef, ast.AsyncFunctionDef)

BINDING: Final = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.comprehension),
    *(ast.NamedExpr, ast.withitem),
)

ASSIGNING: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign)
PARTS: Final = (ast.Attribute, ast.Subscript)
MAX_STEPS: Final = 20
MAX_CHANGES: Final = 2
MAX_TEXT: Final = 60


class Made(NamedTuple):
    """A line that made a value, or passed it on.

    Attributes:
        text: Name and code, as a sentence; "" for a line that has neither.
    """

    line: int
    text: str = ""


Read: TypeAlias = tuple[ast.expr, int, int]
"""An expression that is followed back, the line that reads it, and the index of the
frame that runs it, from the outermost; -1 for another."""


class Trail:
    """Follows names back, the nearest bindings first.

    ``frames`` are the lines on the way to the call, outermost first.
    """

    def __init__(self, program: SourceText, frames: Sequence[SourcePosition]) -> None:
        self._program, self._frames = program, frames
        self._functions = {node.name: node for node in program.find(*FUNCTIONS)}
        self._classes = {node.name: node for node in program.find(ast.ClassDef)}
        self._found: dict[int, Made] = {}
        self._bound: dict[str, list[tuple[ast.expr, ast.expr | None]]] = {}
        for node in program.find(*BINDING):
            is_loop = isinstance(node, (ast.For, ast.comprehension))
            value = getattr(node, "iter" if is_loop else "value", None)
            for target in _list_targets(node):
                self._bound.setdefault(ast.unparse(target), []).append((target, value))
        self._changed: dict[str, list[int]] = {}
        for statement in program.find(ast.Assign, ast.Expr, ast.For):
            for part in _list_changed(statement):
                lines = self._changed.setdefault(ast.unparse(part), [])
                lines.append(statement.lineno)

    def follow(self, names: Sequence[str]) -> list[Made]:
        """Return the lines that made some operands (``names``), the nearest first."""
        if not self._frames:
            return []
        last, at = len(self._frames) - 1, self._frames[-1].line
        read = [n for n in self._program.find_expressions(at) if is_read(n)]
        named = [n for n in read if _is_part(ast.unparse(n), names)]
        named.sort(key=lambda node: ast.unparse(node) not in names)  # objects last
        is_all = not named or UNNAMED in names
        todo = [(node, at, last) for node in (*named, *read[: int(is_all)])]
        todo += [one for node in read[:1] for one in self._enter(node)]
        seen: set[tuple[str, int]] = set()
        while todo and len(self._found) < MAX_STEPS:
            node, before, level = todo.pop(0)
            for name in _list_names(node):
                key = ast.unparse(name), self._program.find_scope(name)
                if key not in seen:
                    seen.add(key)
                    todo += self._find_sources(name, before, level)
        return [*self._found.values()]

    def _find_sources(self, name: ast.expr, before: int, level: int) -> Iterator[Read]:
        """Yield the expressions that a name got its value from."""
        bound = [*self._find_bindings(name, before)]
        for node, value in bound:
            self._note_statement(node)
            if value is not None:
                yield value, node.lineno, level
                yield from self._enter(value)
        text = ast.unparse(name)  # the last lines that may change the object
        changed = self._changed.get(text, []) if text != "self" else []
        for line in [line for line in changed if line < before][-MAX_CHANGES:]:
            self._note(line)
        function = self._find_around(name, *FUNCTIONS)
        if not bound and isinstance(name, ast.Name) and function is not None:
            yield from self._find_passed(name.id, function, level)

    def _find_bindings(
        self, name: ast.expr, before: int
    ) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | None]]:
        """Yield where a name is bound: in its function, an attribute in its class."""
        text = ast.unparse(name)
        scope = self._program.find_scope(name)
        is_held = text.startswith("self.")
        owner = self._find_around(name, ast.ClassDef) if is_held else None
        found = [
            (target, value)
            for target, value in self._bound.get(text, [])
            if self._program.find_scope(target) == scope
            or (owner and self._find_around(target, ast.ClassDef) is owner)
        ]
        earlier = [one for one in found if one[0].lineno < before]
        yield from earlier[-1:] if owner is None and earlier else found[-2:]

    def _find_passed(self, name: str, function: Function, level: int) -> Iterator[Read]:
        """Yield what callers passed for a parameter, or its default."""
        number, default = _find_parameter(function, name)
        if number is None:
            return
        owner = self._find_around(function, ast.ClassDef)
        is_passed = False
        for call, above in self._find_callers(function, owner, level):
            starred = any(isinstance(one, ast.Starred) for one in call.args)
            given = {one.arg: one.value for one in call.keywords}.get(name)
            at = number - (owner is not None)
            if given is None and not starred and 0 <= at < len(call.args):
                given = call.args[at]
            is_named = given is not None and ast.unparse(given) != name
            self._note(
                call.lineno, f"{name} is " * is_named, given if is_named else None
            )
            if given is not None:
                is_passed = True
                yield given, call.lineno, above
                yield from self._enter(given)
        if default is not None and not is_passed:
            self._note(default.lineno, f"{name} is ", default)

    def _find_callers(
        self, function: Function, owner: ast.ClassDef | None, level: int
    ) -> list[tuple[ast.Call, int]]:
        """Return the calls of a function, those on the way to the failed call first."""
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        inside = [n for n in range(level + 1) if self._frames[n].line in lines]
        above = inside[0] - 1 if inside else -1
        calls = self._program.find(ast.Call)
        if above >= 0:
            at = self._frames[above]
            on_way = [c for c in calls if c.lineno == at.line]
            same = [c for c in on_way if span_of(c) == at.span]
            return [(call, above) for call in (same or on_way)[:1]]
        names = {function.name} if owner is None else {owner.name}
        if owner is None or function.name == "__init__":
            return [(call, -1) for call in calls if name_of(call) in names][:2]
        return []

    def _enter(self, value: ast.expr) -> Iterator[Read]:
        """Yield what the user's functions return that an expression calls."""
        for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)):
            function = self._find_called(call)
            for node in ast.walk(function) if function is not None else ():
                if isinstance(node, ast.Return) and node.value is not None:
                    self._note(node.lineno)
                    yield node.value, node.lineno, -1

    def _find_called(self, call: ast.Call) -> Function | None:
        """Return the user's function that makes the result of a call.

        A data set gives its items; a module that is called runs its ``forward``.
        """
        name = name_of(call)
        bound = self._bound.get(ast.unparse(call.func), [])
        made = [name_of(value) for _, value in bound if isinstance(value, ast.Call)]
        for wanted, names in (("__getitem__", [name]), ("forward", made)):
            found = [self._classes[n] for n in names if n in self._classes]
            for one in found[-1].body if found else ():
                if isinstance(one, FUNCTIONS) and one.name == wanted:
                    return one
        return None if name in self._classes else self._functions.get(name)

    def _note_statement(self, node: ast.AST) -> None:
        """Note the line that binds a name, with the statement as text."""
        found = self._program.find_statement(node)
        text = self._program.read(found) if isinstance(found, ASSIGNING) else ""
        if isinstance(found, ast.For):
            given = self._program.read(found.iter)
            text = f"for {self._program.read(found.target)} in {given}"
        self._note(getattr(node, "lineno", 0), text)

    def _note(self, line: int, name: str = "", value: ast.expr | None = None) -> None:
        text = name if value is None else name + self._program.read(value)
        is_short = "\n" not in text and len(text) <= MAX_TEXT
        self._found.setdefault(line, Made(line, text if is_short else ""))

    def _find_around(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        """Return the innermost node of some kinds around a node."""
        above = self._program.walk_up(node)
        return next((one for one in above if isinstance(one, kinds)), None)


def _list_changed(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the objects that a statement may change, as ``net[3] = ...`` changes net.

    A loop over an object may change its parts.
    """
    if isinstance(node, ast.Assign):
        yield from (one.value for one in node.targets if isinstance(one, PARTS))
    elif isinstance(node, ast.For):
        yield from _list_names(node.iter)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from [*_list_names(node.value.func)][1:]


def _is_part(text: str, names: Sequence[str]) -> bool:
    """Whether code is one of some names, or an object that has one as attribute."""
    is_object = text != "self" and text.replace(".", "").isidentifier()
    return any(
        name == text or (is_object and name.startswith((f"{text}.", f"{text}[")))
        for name in names
    )


def _list_names(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the names and attributes that an expression reads, outer ones first."""
    for below in ast.walk(node):
        if isinstance(below, (ast.Name, ast.Attribute)) and is_read(below):
            yield below


def _list_targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names and attributes that a statement binds."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    one = getattr(node, "target", None) or getattr(node, "optional_vars", None)
    for target in [*targets, *([one] if one is not None else [])]:
        for below in ast.walk(target):
            if isinstance(below, (ast.Name, ast.Attribute)) and not is_read(below):
                yield below


def _find_parameter(
    function: Function, name: str
) -> tuple[int | None, ast.expr | None]:
    """Return the position of a parameter and its default; None for no parameter."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    named = [one.arg for one in given.kwonlyargs]
    defaults = {one.arg: default for one, default in pair_defaults(given)}
    number = names.index(name) if name in names else len(names)
    return (number if name in [*names, *named] else None), defaults.get(name)
