"""An edit of a program: a stretch of one line that is replaced."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Edit", "add_argument", "apply_edit", "edit_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A stretch of a line, and what is to stand there.

    Attributes:
        line: The line, from 1.
        column: Where it begins, in UTF-8 bytes from 0.
        end_column: Where it ends.
        text: What is to stand there.
    """

    line: int
    column: int
    end_column: int
    text: str


def edit_node(node: ast.expr | ast.stmt, text: str) -> Iterator[Edit]:
    """Yield the edit that puts a text in the place of a node, if that is on a line."""
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield Edit(
            line=node.lineno,
            column=node.col_offset,
            end_column=node.end_col_offset,
            text=text,
        )


def add_argument(node: ast.Call, text: str, argument: str) -> Iterator[Edit]:
    """Yield the edit that gives a call of a program one argument more."""
    called = ast.get_source_segment(text, node) or ""
    comma = ", " if node.args or node.keywords else ""
    yield from edit_node(node, f"{called[:-1]}{comma}{argument})")


def apply_edit(source: str, edit: Edit, first_line: int = 1) -> str:
    """Return a source with an edit made.

    Args:
        source: It.
        edit: The edit.
        first_line: The number that the edit has for the first line of the source.
    """
    lines = source.split("\n")
    at = edit.line - first_line
    line = lines[at].encode()
    changed = line[: edit.column] + edit.text.encode() + line[edit.end_column :]
    lines[at] = changed.decode()
    return "\n".join(lines)
