"""How the user's code writes the tensors of a call, read from its frames and text.

Nothing of the user's runs for it: what an expression stands for is looked up, as far as
names, attributes and constant keys lead.
"""

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from types import (
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from meta_magic.recording.identities.code_positions import describe_position, list_spans
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    is_made,
    parameters_of,
    walk_modules,
)
from meta_magic.trace.signature import SourcePosition

KEPT: Final = frozenset({"", "i", "ii", "iii", "dh", "ih", "oh"})
"""IPython's names for earlier values and cells, without underscores and digits."""

LOAD: Final = ast.Load()

MAX_BRACKETS: Final = 2

NUMBER: Final = re.compile(r"\.(\d+)(?=\.|$)")


class Site(NamedTuple):
    """A frame on the way to a call.

    Attributes:
        frame: It.
        position: What it was doing.
        text: The source of its file; "" where that is not known.
        node: What of it stands at the position; None if that is nothing.
    """

    frame: FrameType
    position: SourcePosition
    text: str
    node: ast.AST | None


def read_variables(frame: FrameType) -> dict[str, object]:
    """Return the variables of a frame."""
    local_names = frame.f_locals
    names = {**frame.f_globals, **local_names}
    # Before Python 3.13 the frame keeps this snapshot, and with it every tensor that
    # its function deletes later. Emptied, unless somebody else asked for it, too.
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if type(local_names) is dict and is_snapshot and sys.getrefcount(local_names) <= 3:  # noqa: PLR2004  the frame's, ours, the argument's
        local_names.clear()
    return names


def make_site(entry: TracebackType) -> Site:
    """Return what an entry of a traceback stands for.

    Where names are bound, that is what they are bound to: the whole assignment.
    """
    code = entry.tb_frame.f_code
    position = describe_position(code, list_spans(code)[max(entry.tb_lasti, 0) // 2])
    text = "".join(linecache.getlines(position.file))
    node = find_node(text, position)
    if isinstance(node, ast.stmt) and hasattr(node, "end_col_offset"):
        position = replace(
            position,
            line=node.lineno,
            end_line=node.end_lineno or node.lineno,
            column=node.col_offset,
            end_column=node.end_col_offset,
        )
    return Site(entry.tb_frame, position, text, node)


def list_names(value: object, sites: Sequence[Site]) -> list[str]:
    """Return how code writes a tensor or a module, the innermost first; none twice.

    Args:
        value: The tensor, or the module.
        sites: The frames of the code, outermost first.
    """
    found = (name for site in reversed(sites) for name in walk_names(value, site))
    return list(dict.fromkeys(found))


def list_written(sites: Sequence[Site]) -> list[Tensor]:
    """Return the tensors that the expressions at some places stand for, or hold."""
    tensors = [
        held
        for site in sites
        for part in walk_parts(site)
        for _, held in walk_tensors(read_expression(part, site.frame))
    ]
    return [*{id(tensor): tensor for tensor in tensors}.values()]


def list_arguments(site: Site, function: object, n_given: int | None) -> list[str]:
    """Return how a place writes the positional arguments of its call.

    Args:
        site: The place.
        function: What is called, if it is no module.
        n_given: How many arguments there are, with what a method is of; [] where that
            does not fit what is written. None for a class, which has them by name, too.
    """
    node = site.node
    if not isinstance(node, ast.Call):
        return []
    called = read_expression(node.func, site.frame)
    if called not in (None, function) and not isinstance(called, nn.Module):
        return []  # it calls what calls the function
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for written in (node.args, [*owner, *node.args]):
        is_all = n_given is None or len(written) == n_given
        if is_all and not any(map(is_starred, written)):
            return [ast.unparse(argument) for argument in written]
    return []


def is_starred(node: ast.expr) -> bool:
    """Whether an argument stands for several."""
    return isinstance(node, ast.Starred)


def name_in_modules(tensor: Tensor, modules: Iterable[nn.Module]) -> str:
    """Return how the first module that holds a tensor does; "" if none does."""
    found = (type(m).__name__ + path for m in modules for path in find_paths(tensor, m))
    return next(found, "")


def walk_names(value: object, site: Site) -> Iterator[str]:
    """Yield how a frame writes something: where it is, or as a variable has it."""
    for part in walk_parts(site):
        read = read_expression(part, site.frame)
        paths = [p for p, held in walk_tensors(read) if held is value]
        if read is value or paths:
            written = ast.get_source_segment(site.text, part) or ast.unparse(part)
            yield written + ("" if read is value else paths[0])
            return
    if isinstance(value, Tensor):
        yield from [*walk_variables(value, site.frame)][:1]


def walk_parts(site: Site) -> Iterator[ast.expr]:
    """Yield the expressions at a place, the whole first."""
    nodes = [] if site.node is None else [site.node]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(getattr(node, "ctx", LOAD), ast.Store):
            nodes += [*ast.iter_child_nodes(node)]


def walk_tensors(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a value is, or that lists in it hold, and where."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple, dict)) and path.count("[") < MAX_BRACKETS:
        for at, held in walk_held(value):
            yield from walk_tensors(held, path + at)


def find_node(text: str, position: SourcePosition) -> ast.AST | None:
    """Return the node of a text's syntax tree that stands at a position, or None."""
    span = position.line, position.end_line, position.column, position.end_column
    found = list_nodes(text)
    at = [n for n in found if span == (n.lineno, n.end_lineno, *columns_of(n))]
    node = max(at, key=lambda node: isinstance(node, ast.expr), default=None)
    if not isinstance(getattr(node, "ctx", LOAD), ast.Store):
        return node
    bound = [n for n in found if isinstance(n, ast.Assign) and node in n.targets]
    loops = [n.iter for n in found if isinstance(n, ast.For) and node is n.target]
    return next(iter((*bound, *loops)), node)


@lru_cache(maxsize=4)
def list_nodes(text: str) -> tuple[ast.expr | ast.stmt, ...]:
    """Return the expressions and statements of a text; () if it is no Python."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):  # as a template
        return ()
    return tuple(node for node in nodes if isinstance(node, (ast.expr, ast.stmt)))


def columns_of(node: ast.expr | ast.stmt) -> tuple[int, int | None]:
    """Return the first column of a node, and the one after its last."""
    return node.col_offset, node.end_col_offset


def read_expression(node: ast.expr, frame: FrameType) -> Any:
    """Return what an expression stands for; None if code would have to run for it."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return read_members(read_expression(node.value, frame)).get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return read_item(read_expression(node.value, frame), node.slice.value)
    return None


def read_members(value: object) -> Mapping[str, Any]:
    """Return the attributes of an object, of a module its tensors and modules too."""
    members = read_attributes(value)
    if not isinstance(value, nn.Module) or not is_made(value):
        return members
    parts = parameters_of(value), buffers_of(value), children_of(value)
    return {name: held for part in (*parts, members) for name, held in part.items()}


def read_item(value: object, key: Any) -> Any:
    """Return what a list, a dictionary or a container of modules has at a key."""
    if isinstance(value, nn.Module):
        return read_members(value).get(str(key))
    if type(value) in (list, tuple, dict):
        try:
            return value[key]  # type: ignore[index]  # one of the three
        except (LookupError, TypeError):
            return None
    return None


def walk_variables(tensor: Tensor, frame: FrameType) -> Iterator[str]:
    """Yield how the variables of a frame lead to a tensor."""
    for variables in (frame.f_locals, frame.f_globals):
        named = [(n, v) for n, v in [*variables.items()] if not is_shells(n)]
        yield from (name for name, value in named if value is tensor)
        modules = [(n, v) for n, v in named if isinstance(v, nn.Module) and is_made(v)]
        for name, module in modules:
            yield from (name + path for path in find_paths(tensor, module))
        for name, value in named:
            yield from (
                name + at for at, v in walk_tensors(value) if at and v is tensor
            )


def is_shells(name: str) -> bool:
    """Whether a name is one of Python's, or of what IPython keeps of earlier cells."""
    if not name.startswith("_"):
        return name in IPYTHONS
    return name.startswith("__") or name.strip("_0123456789") in KEPT


def find_paths(tensor: Tensor, root: nn.Module) -> Iterator[str]:
    """Yield where a module holds a tensor, as Python writes it behind the module."""
    for fqn, module in walk_modules(root):
        for tensors in (parameters_of(module), buffers_of(module)):
            path = f".{fqn}" if fqn else ""
            for name in (name for name, held in tensors.items() if held is tensor):
                yield NUMBER.sub(r"[\1]", f"{path}.{name}")


MAX_HELD: Final = 1_000
"""Values of one list, dictionary or object that are looked at."""

KEYS: Final = frozenset({str, int, bool})
"""Types of keys that are written without asking the user's code."""

READERS: Final = frozenset({GetSetDescriptorType, MemberDescriptorType})
"""How the interpreter itself reads a ``__dict__``."""

IPYTHONS: Final = frozenset({"In", "Out"})

bases_of = type.__dict__["__mro__"].__get__
names_of = type.__dict__["__dict__"].__get__


def walk_held(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what a value holds, and how that is written behind its name."""
    kind = type(value)
    if issubclass(kind, list | tuple):
        base = list if issubclass(kind, list) else tuple
        items = [*islice(base.__iter__(value), MAX_HELD)]
        yield from ((f"[{index}]", held) for index, held in enumerate(items))
    elif issubclass(kind, dict):
        pairs = [*islice(dict.items(value), MAX_HELD)]
        yield from ((f"[{key!r}]", held) for key, held in pairs if type(key) in KEYS)
    elif not issubclass(kind, type | ModuleType):
        attributes = [*islice(read_attributes(value).items(), MAX_HELD)]
        yield from ((f".{n}", held) for n, held in attributes if not n.startswith("_"))


def read_attributes(value: object) -> dict[str, Any]:
    """Return the ``__dict__`` of an object; {} if it has none, or one of its own."""
    for base in bases_of(type(value)):
        reader = names_of(base).get("__dict__")
        if reader is not None:
            return reader.__get__(value) if type(reader) in READERS else {}
    return {}
