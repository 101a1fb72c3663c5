"""``%meta repair 1``: a repair of the newest cell, put into a new cell to look at it.

It is a reply to an execution, which each front end and the terminal take: none takes
one from a widget.
"""

import re
from typing import Any, Final

from IPython.core.error import UsageError

__all__ = ["REPAIR", "is_repair", "put_repair"]

REPAIR: Final = "repair"

LINE: Final = re.compile(rf"\s*{REPAIR}(\s+(\d+))?\s*")


def is_repair(shell: Any, line: str) -> bool:
    """Whether the line of ``%meta`` asks for a repair: not where the name is one."""
    found = LINE.fullmatch(line)
    return found is not None and (bool(found[1]) or REPAIR not in shell.user_ns)


def put_repair(shell: Any, line: str) -> object:
    """Put the repair that the line numbers into a new cell, by default the first.

    Raises:
        UsageError: There is no such repair.
    """
    found = LINE.fullmatch(line)
    number = int(found[2]) if found and found[2] else 1
    trace = shell.user_ns.get("_meta")
    explanation = None if trace is None else trace.explanation
    if explanation is None:
        raise UsageError(f"%meta {REPAIR}: the newest cell did not fail")
    n_repairs = len(explanation.repairs)
    if not 1 <= number <= n_repairs:
        known = f"1 to {n_repairs}" if n_repairs else "none"
        raise UsageError(f"%meta {REPAIR} {number}: the repairs that ran are {known}")
    repaired = trace.cell.head + explanation.repairs[number - 1].source
    return shell.set_next_input(repaired, replace=False)
