"""How the user's code writes the tensors of a call, read from its frames and text.

Nothing of the user's runs for it: what an expression stands for is looked up, as far as
names, attributes and constant keys lead.
"""

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn

from meta_magic.recording.identities.places import describe_position, list_spans
from meta_magic.session.module_names import IPYTHONS, read_attributes, walk_held
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    is_made,
    parameters_of,
    walk_modules,
)
from meta_magic.trace.signature import SourcePosition

__all__ = [
    "NUMBER",
    "Site",
    "find_paths",
    "is_shells",
    "list_names",
    "make_site",
    "name_in_modules",
]

KEPT: Final = frozenset({"", "i", "ii", "iii", "dh", "ih", "oh"})
"""IPython's names for earlier values and cells, without underscores and digits."""

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


def make_site(entry: TracebackType) -> Site:
    """Return what an entry of a traceback stands for."""
    code = entry.tb_frame.f_code
    position = describe_position(code, list_spans(code)[max(entry.tb_lasti, 0) // 2])
    text = "".join(linecache.getlines(position.file))
    return Site(entry.tb_frame, position, text, find_node(text, position))


def list_names(tensor: Tensor, sites: Sequence[Site]) -> list[str]:
    """Return how code writes a tensor, the innermost first; none twice.

    Args:
        tensor: The tensor.
        sites: The frames of the code, outermost first.
    """
    found = (name for site in reversed(sites) for name in walk_names(tensor, site))
    return list(dict.fromkeys(found))


def name_in_modules(tensor: Tensor, modules: Iterable[nn.Module]) -> str:
    """Return how the first module that holds a tensor does; "" if none does."""
    found = (type(m).__name__ + path for m in modules for path in find_paths(tensor, m))
    return next(found, "")


def walk_names(tensor: Tensor, site: Site) -> Iterator[str]:
    """Yield how a frame writes a tensor: where it is, or as a variable has it."""
    for part in [] if site.node is None else ast.walk(site.node):
        if isinstance(part, ast.expr) and read_expression(part, site.frame) is tensor:
            yield ast.get_source_segment(site.text, part) or ast.unparse(part)
            return
    yield from [*walk_variables(tensor, site.frame)][:1]


def find_node(text: str, position: SourcePosition) -> ast.AST | None:
    """Return the node of a text's syntax tree that stands at a position, or None."""
    span = position.line, position.end_line, position.column, position.end_column
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):  # no Python, as a template
        return None
    found = (node for node in nodes if isinstance(node, (ast.expr, ast.stmt)))
    at = (n for n in found if span == (n.lineno, n.end_lineno, *columns_of(n)))
    return max(at, key=lambda node: isinstance(node, ast.expr), default=None)


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
            if type(value) in (list, tuple, dict):
                yield from (name + at for at, v in walk_held(value) if v is tensor)


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
