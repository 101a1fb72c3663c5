"""Where in its source each instruction of code stands."""

from functools import lru_cache
from types import CodeType
from typing import TypeAlias

from meta_magic.trace.signature import SourcePosition

__all__ = ["Span", "describe_position", "list_spans"]

Span: TypeAlias = tuple[int, int, int | None, int | None]
"""First line, last line, first column, column after the last."""


@lru_cache(maxsize=4096)
def list_spans(code: CodeType) -> list[Span]:
    """Return first line, last line, first and end column of each instruction."""
    return [
        (line or code.co_firstlineno, end or line or code.co_firstlineno, column, after)
        for line, end, column, after in code.co_positions()
    ]


def describe_position(code: CodeType, span: Span) -> SourcePosition:
    """Return the plain record of a stretch of source."""
    line, end_line, column, end_column = span
    return SourcePosition(
        file=code.co_filename,
        line=line,
        end_line=end_line,
        column=column,
        end_column=end_column,
        function=code.co_qualname,
    )
