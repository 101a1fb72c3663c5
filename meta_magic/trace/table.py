"""Operator calls as a table."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from meta_magic.trace.calls import OpCall

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build_table"]

DERIVED = ("nbytes_read", "nbytes_written")


def build_table(calls: Sequence[OpCall]) -> "pd.DataFrame":
    """Return one row per call, columns named as the fields of :class:`OpCall`.

    Whole numbers that can be absent have pandas' nullable ``Int64`` type.
    """
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    names = (*(field.name for field in fields(OpCall)), *DERIVED)
    rows = [tuple(getattr(call, name) for name in names) for call in calls]
    frame = pd.DataFrame(rows, columns=list(names)).set_index("index", drop=False)
    frame.index.name = None
    absent = ("root", "module_call", "line", "forward", "flops")
    return frame.astype(dict.fromkeys(absent, "Int64"))
