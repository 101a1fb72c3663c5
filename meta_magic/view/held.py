"""What a report keeps of a recording, to be asked later."""

import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from meta_magic.trace.program import Program

__all__ = ["FORGOTTEN", "find_none", "hold"]

T = TypeVar("T")

FORGOTTEN: Final = (
    "the recording is gone: it holds real tensors, and so the report does not keep it; "
    "name it by %%meta -o NAME"
)


def hold(program: Program, record: T) -> Callable[[], T | None]:
    """Return what finds a record of a program, or None when it is gone.

    It is kept, but for one of a program that keeps a tensor of the user's.
    """
    if all(constant.tensor is None for constant in program.constants):
        return lambda: record
    return weakref.ref(record)


def find_none() -> None:
    """Find no recording."""
