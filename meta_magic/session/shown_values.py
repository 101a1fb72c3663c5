"""Texts of what earlier recordings left on meta, with values, where none runs."""

from collections.abc import Callable
from typing import TypeVar

from meta_magic.recording.identities.origins import has_origins
from meta_magic.session.guard import Guard
from meta_magic.session.recording import Recording
from meta_magic.trace.options import Options
from meta_magic.trace.provenance import ValueLimits

__all__ = ["run_with_values"]

T = TypeVar("T")


def run_with_values(block: Callable[[], T], limits: ValueLimits) -> T:
    """Run what writes texts: those of tensors on meta have values, if they take little.

    Nothing is recorded, and torch is as it is.

    Args:
        block: Writes them.
        limits: What the value of one may take.
    """
    if not has_origins():
        return block()
    recording = Recording("", options=Options(limits=limits))
    try:
        return Guard((recording.texts,)).run(block)
    finally:
        recording.close()
