"""What a choice in the Materialize panel would do, in the words of the panel."""

import time
from dataclasses import dataclass
from typing import Final

from meta_magic.materializing.fitting import list_fitting
from meta_magic.materializing.forecast import format_seconds
from meta_magic.materializing.materialize import prepare
from meta_magic.materializing.variables import Variables
from meta_magic.replaying.devices import free_nbytes
from meta_magic.trace.units import format_bytes
from meta_magic.view.choices import Choice, format_need

__all__ = ["GONE", "Outlook", "TimeLeft", "describe_end", "look_ahead"]

GONE: Final = (
    "the module is gone: it was deleted or built anew; run the cell again for a new "
    "Materialize button"
)

REAL: Final = "nothing: all of it is real already"

PATIENCE: Final = 1.0
"""Seconds after which it can be told how long it will take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a choice would do; the traits of the panel with the same names.

    Attributes:
        needed: The bytes that it takes; "" where that is not known.
        free: The bytes that are free.
        is_enough: Whether these are as many.
        is_real: Whether there is nothing to do.
        forecast: What would be replayed, for what, and how long that takes.
        fitting: What would fit, where it does not.
        message: Why it cannot be done; "" if it can.
    """

    needed: str = ""
    free: str = ""
    is_enough: bool = True
    is_real: bool = False
    forecast: str = ""
    fitting: str = ""
    message: str = ""


def look_ahead(wanted: object, name: str, choice: Choice) -> Outlook:
    """Return what a choice would do.

    Args:
        wanted: What is chosen.
        name: How it is written; "" if that is not known.
        choice: What is chosen besides.

    Raises:
        MaterializeError: It cannot be done.
    """
    arguments = choice.arguments()
    prepared = prepare(wanted, **arguments)
    free = format_bytes(free_nbytes(prepared.device))
    if not prepared.targets:
        return Outlook(needed=REAL, free=free, is_real=True)
    fits = prepared.fits
    found = [] if fits else [*list_fitting(prepared, name or "the module", arguments)]
    return Outlook(
        needed=format_need(prepared.nbytes, prepared.peak_nbytes),
        free=free,
        is_enough=fits,
        forecast=str(prepared.forecast),
        fitting=" or ".join(found),
    )


def describe_end(name: str, kind: str, places: str) -> str:
    """Return in words what is real now, and what to type to have it.

    Args:
        name: How it is written; "" if that is not known.
        kind: Its class, or that of all variables.
        places: Where it is.
    """
    if kind == Variables.__name__:
        return f"what your variables hold is now real, on {places}"
    if not name:
        return f"the {kind} is now real, on {places}"
    return f"`{name}` is now real, on {places}: call `{name}(…)` in the next cell"


class TimeLeft:
    """How long what was begun now will still take, as far as it has come."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._total: float | None = None

    def describe(self, fraction: float) -> str:
        """Return that in words, given the fraction that is done; "" at first."""
        elapsed = time.monotonic() - self._started
        if elapsed < PATIENCE or not fraction:
            return ""
        total = elapsed / fraction
        # Steps are not all as long as was thought: no number that jumps.
        self._total = total if self._total is None else (3 * self._total + total) / 4
        left = max(self._total - elapsed, 0.0)
        return f"{format_seconds(left)} left"
