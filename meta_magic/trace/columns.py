"""What all tables need to know of a column: of the operators, and of the modules."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Column", "Format"]

Format: TypeAlias = Literal[
    "text", "number", "bytes", "flops", "count", "share", "flow", "marks", "function"
]
"""How a value is written: in the browser by ``static/dom.js``, in texts by ``summary``.

What the browser does not know by name it shows as it is.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What all tables need to know of a column.

    Attributes:
        name: In the header, and in ``to_pandas()``.
        help: What it tells, in a sentence; the header's tooltip and the docs show it.
        format: How the report writes its values.
        width: Pixels that it takes at least; columns share more room in proportion.
        align: The side at which its texts begin.
        is_pinned: Whether it stays in sight when the table is scrolled sideways.
        is_optional: Whether the report has it only where some row has a value.
        is_extra: Whether the report hides it until a person chooses it.
    """

    name: str
    help: str
    format: Format = "text"
    width: int = 120
    align: Literal["left", "right"] = "left"
    is_pinned: bool = False
    is_optional: bool = False
    is_extra: bool = False
