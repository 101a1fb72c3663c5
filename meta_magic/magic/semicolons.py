"""A semicolon at the end of a cell silences its value, also before IPython 8.3."""

import tokenize
from functools import wraps
from io import StringIO
from typing import Any, Final

__all__ = ["ends_with_semicolon", "output_can_be_silenced"]

BLANK: Final = frozenset(
    {tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT}
)


def silence_at_semicolon(magic: Any) -> Any:
    """Return a magic that returns nothing where its code ends with a semicolon."""

    @wraps(magic)
    def silenced(magics: Any, line: str, cell: str | None = None) -> object:
        __tracebackhide__ = True
        value: object = magic(magics, line, cell)
        return None if ends_with_semicolon(line if cell is None else cell) else value

    return silenced


def ends_with_semicolon(code: str) -> bool:
    """Whether the last token of code is a semicolon; comments are none."""
    try:
        tokens = [*tokenize.generate_tokens(StringIO(code).readline)]
    except (SyntaxError, tokenize.TokenError):
        return False
    last = [token.string for token in tokens if token.type not in BLANK][-1:]
    return last == [";"]


try:
    from IPython.core.magic import output_can_be_silenced
except ImportError:  # before IPython 8.3
    output_can_be_silenced = silence_at_semicolon  # type: ignore[assignment]  # of any magic
