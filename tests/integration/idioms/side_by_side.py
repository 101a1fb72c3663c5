"""One program twice: as plain torch runs it, and recorded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from meta_magic import Trace, record


class Outcome(NamedTuple):
    """What a program came to.

    Attributes:
        returned: What it returned; None if it raised.
        error: What it raised; None if it returned.
    """

    returned: Any
    error: Exception | None

    @property
    def refusal(self) -> tuple[str, str]:
        """Type and first sentence of the error."""
        assert self.error is not None, self.returned
        return type(self.error).__name__, str(self.error).split(";")[0]


def run(program: Callable[[], Any]) -> Outcome:
    """Run a program from a fixed seed."""
    torch.manual_seed(0)
    try:
        return Outcome(program(), None)
    except Exception as error:
        return Outcome(None, error)


def run_both(program: Callable[[], Any]) -> tuple[Outcome, Outcome, Trace]:
    """Return what plain torch makes of a program, what a recording does, its trace."""
    plain = run(program)
    with record() as trace:
        recorded = run(program)
    return plain, recorded, trace
