"""Find how the user's code writes the tensors and modules of a call.

An error says "`scores`, of shape (8, 4)" and not "an operand": names are found in the
frames of the traceback and the text of the failing line. No code of the user's runs for
it: only names, attributes and constant keys are followed, and objects are read past the
methods of their class. Read ``list_names`` first.
"""

import ast
import linecache
import re
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

from meta_magic.recording.identities.call_sites import (
    describe_position,
    list_spans,
    read_locals,
)
from meta_magic.recording.identities.tensors import name_tensors
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    is_made,
    parameters_of,
)
from meta_magic.trace.signature import SourcePosition

IPYTHONS: Final = frozenset({"In", "Out"})
KEPT: Final = frozenset({"", "i", "ii", "iii", "dh", "ih", "oh"})
"""IPython's names for earlier values and cells, without underscores and digits."""

LOAD: Final = ast.Load()
MAX_BRACKETS: Final = 2
MAX_HELD: Final = 1_000
"""The most values of one list, dictionary or object that are looked at."""

KEYS: Final = frozenset({str, int, bool})
"""Types of keys whose ``repr`` runs no code of the user's."""

READERS: Final = frozenset({GetSetDescriptorType, MemberDescriptorType})
"""The types of the interpreter's own ``__dict__`` attribute."""

bases_of = type.__dict__["__mro__"].__get__
names_of = type.__dict__["__dict__"].__get__

NUMBER: Final = re.compile(r"\.(\d+)(?=\.|$)")


class Site(NamedTuple):
    """A frame on the way to a call, and what it was running."""

    frame: FrameType
    position: SourcePosition
    text: str
    node: ast.AST | None


def make_site(entry: TracebackType) -> Site:
    """Return the site of a traceback's entry; of an unpacking, the whole assignment."""
    code = entry.tb_frame.f_code
    position = describe_position(code, list_spans(code)[max(entry.tb_lasti, 0) // 2])
    text = "".join(linecache.getlines(position.file))
    node = _find_node(text, position)
    if isinstance(node, ast.stmt) and hasattr(node, "end_col_offset"):
        position = replace(
            position,
            line=node.lineno,
            end_line=node.end_lineno or node.lineno,
            column=node.col_offset,
            end_column=node.end_col_offset,
        )
    return Site(entry.tb_frame, position, text, node)


def read_text(position: SourcePosition | None) -> str:
    """Return the code at a call site; of several lines the first."""
    if position is None:
        return ""
    line = linecache.getline(position.file, position.line).rstrip("\n").encode()
    is_whole = position.line == position.end_line
    end = position.end_column if is_whole else None
    more = "" if is_whole else " ..."
    return line[position.column : end].decode(errors="replace").strip() + more


def list_names(value: object, sites: Sequence[Site]) -> list[str]:
    """Return the names of a tensor or a module at some sites, the innermost first."""
    found = (name for site in reversed(sites) for name in _walk_names(value, site))
    return list(dict.fromkeys(found))


def list_written(sites: Sequence[Site]) -> list[Tensor]:
    """Return the tensors that the expressions at some sites are, or hold."""
    tensors = [
        held
        for site in sites
        for part in walk_parts(site)
        for _, held in _walk_tensors(read_expression(part, site.frame))
    ]
    return [*{id(tensor): tensor for tensor in tensors}.values()]


def list_arguments(site: Site, function: object, n_given: int | None) -> list[str]:
    """Return how a site writes the positional arguments of its call."""
    node = site.node
    if not isinstance(node, ast.Call):
        return []
    called = read_expression(node.func, site.frame)
    if called not in (None, function) and not isinstance(called, nn.Module):
        return []  # the site calls a function that makes the call
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    for written in (node.args, [*owner, *node.args]):
        is_all = n_given is None or len(written) == n_given
        if is_all and not any(isinstance(one, ast.Starred) for one in written):
            return [ast.unparse(argument) for argument in written]
    return []


def name_in_modules(tensor: Tensor, modules: Iterable[nn.Module]) -> str:
    """Return a tensor's name in the first module that holds it; "" if none does."""
    found = (type(m).__name__ + path for m in modules for path in find_paths(tensor, m))
    return next(found, "")


def _walk_names(value: object, site: Site) -> Iterator[str]:
    """Yield how a site writes a value: in its expression, or else by a variable."""
    for part in walk_parts(site):
        read = read_expression(part, site.frame)
        paths = [p for p, held in _walk_tensors(read) if held is value]
        if read is value or paths:
            written = ast.get_source_segment(site.text, part) or ast.unparse(part)
            yield written + ("" if read is value else paths[0])
            return
    if isinstance(value, Tensor):
        yield from [*_walk_variables(value, site.frame)][:1]


def walk_parts(site: Site) -> Iterator[ast.expr]:
    """Yield the expressions at a site, the outermost first."""
    nodes = [] if site.node is None else [site.node]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(getattr(node, "ctx", LOAD), ast.Store):
            nodes += [*ast.iter_child_nodes(node)]


def _walk_tensors(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple, dict)) and path.count("[") < MAX_BRACKETS:
        for at, held in walk_held(value):
            yield from _walk_tensors(held, path + at)


def _find_node(text: str, position: SourcePosition) -> ast.AST | None:
    """Return the node of the syntax tree at a position; of a target what it gets."""
    span = position.line, position.end_line, position.column, position.end_column
    found = _list_nodes(text)
    at = [
        n
        for n in found
        if span == (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset)
    ]
    node = max(at, key=lambda node: isinstance(node, ast.expr), default=None)
    if not isinstance(getattr(node, "ctx", LOAD), ast.Store):
        return node
    bound = [n for n in found if isinstance(n, ast.Assign) and node in n.targets]
    loops = [n.iter for n in found if isinstance(n, ast.For) and node is n.target]
    return next(iter((*bound, *loops)), node)


@lru_cache(maxsize=4)
def _list_nodes(text: str) -> tuple[ast.expr | ast.stmt, ...]:
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):  # not Python, but a template
        return ()
    return tuple(node for node in nodes if isinstance(node, (ast.expr, ast.stmt)))


def read_expression(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of an expression; None if code would have to run for it."""
    if isinstance(node, ast.Name):
        return read_locals(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return _read_members(read_expression(node.value, frame)).get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return _read_item(read_expression(node.value, frame), node.slice.value)
    return None


def _read_members(value: object) -> Mapping[str, Any]:
    members = read_attributes(value)
    if not isinstance(value, nn.Module) or not is_made(value):
        return members
    parts = parameters_of(value), buffers_of(value), children_of(value)
    return {name: held for part in (*parts, members) for name, held in part.items()}


def _read_item(value: object, key: Any) -> Any:
    if isinstance(value, nn.Module):
        return _read_members(value).get(str(key))
    if type(value) in (list, tuple, dict):
        try:
            return value[key]  # type: ignore[index]  # one of the three
        except (LookupError, TypeError):
            return None
    return None


def _walk_variables(tensor: Tensor, frame: FrameType) -> Iterator[str]:
    for variables in (read_locals(frame), frame.f_globals):
        named = [(n, v) for n, v in [*variables.items()] if not is_shells(n)]
        yield from (name for name, value in named if value is tensor)
        modules = [(n, v) for n, v in named if isinstance(v, nn.Module) and is_made(v)]
        for name, module in modules:
            yield from (name + path for path in find_paths(tensor, module))
        for name, value in named:
            paths = [at for at, v in _walk_tensors(value) if at and v is tensor]
            yield from (name + at for at in paths)


def is_shells(name: str) -> bool:
    """Whether Python made a variable, or IPython to keep earlier cells."""
    if not name.startswith("_"):
        return name in IPYTHONS
    return name.startswith("__") or name.strip("_0123456789") in KEPT


def find_paths(tensor: Tensor, root: nn.Module) -> Iterator[str]:
    """Yield the paths of a tensor in a module, such as ``.layers[0].weight``."""
    for path, held in name_tensors(root):
        if held is tensor:
            yield NUMBER.sub(r"[\1]", f".{path}")


# Objects, read past the methods of their class


def walk_held(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the items or attributes of a value, each with its path: ``[0]``, ``.x``."""
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
    """Return the ``__dict__`` of an object; {} if it has none, or a property for it."""
    for base in bases_of(type(value)):
        reader = names_of(base).get("__dict__")
        if reader is not None:
            return reader.__get__(value) if type(reader) in READERS else {}
    return {}
