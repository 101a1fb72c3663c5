"""The text of the notebook's functions that a recording called."""

import ast
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meta_magic.trace.program import Program
from meta_magic.view.tokens import write_tokens

__all__ = ["find_texts"]


def find_texts(program: Program) -> Iterator[dict[str, Any]]:
    """Yield file, function, first line and text of notebook functions that were called.

    Those of files on disk are not sent: their text is where the file is.
    """
    scopes = {(position.file, position.function) for position in program.positions}
    for file, scope in sorted(scopes):
        text = "".join(linecache.getlines(file)) if file in linecache.cache else ""
        if not text or Path(file).exists():
            continue
        for name, first, last in walk_functions(parse(text)):
            if name == scope:
                # Not splitlines(), to which a form feed ends a line.
                body = "\n".join(text.split("\n")[first - 1 : last])
                yield {
                    "file": file,
                    "scope": scope,
                    "first": first,
                    "text": body,
                    "tokens": write_tokens(body),
                }


def parse(text: str) -> ast.AST:
    """Return the tree of a text; an empty one of what is no Python, as a template."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # of a zero byte
        return ast.Module(body=[], type_ignores=[])


def walk_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield the qualified name, first and last line of each function in a tree."""
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "name", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield prefix + node.name, first, node.end_lineno or node.lineno
            yield from walk_functions(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from walk_functions(node, f"{prefix}{name}.")
        else:
            yield from walk_functions(node, prefix)
