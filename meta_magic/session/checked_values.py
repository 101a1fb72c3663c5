"""What indices and classes hold that may be out of range, if that takes little."""

from collections.abc import Callable
from typing import Final

from torch import Tensor

from meta_magic.errors import MissingValueError
from meta_magic.recording.intercept.value_checks import ValueChecks
from meta_magic.recording.rows.known_values import GrowingValues
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.session.program_builder import Written
from meta_magic.trace.options import Options
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry

__all__ = ["CheckedValues", "make_checks"]

SHARE: Final = 8
"""What the value of a tensor may take that nobody asked for: such a part."""


class CheckedValues:
    """Computes values that the block did not ask for, and leaves no trace of it.

    Args:
        snapshot: Returns the program recorded so far.
        options: What one value may take, and whether all are to be checked.
    """

    def __init__(self, snapshot: Callable[[], Program], options: Options) -> None:
        self._snapshot = snapshot
        limits = options.limits
        self._budget = ValueBudget(
            limits if options.check_values else limits.little(SHARE)
        )
        self._evaluator = Evaluator(is_apart=True)

    def evaluate(self, storage: int, geometry: Geometry) -> Tensor | None:
        """Return what a tensor holds; None if it takes too much, or is not known."""
        wanted = [(storage, geometry)]
        try:
            reals, _ = self._evaluator.evaluate(
                self._snapshot(),
                wanted,
                self._budget,
                can_assume=False,
                is_brief=True,
            )
        except MissingValueError:
            return None
        return reals[0]


def make_checks(
    write: Written, snapshot: Callable[[], Program], options: Options
) -> ValueChecks:
    """Return what refuses calls for what some operands hold."""
    return ValueChecks(
        write.registry,
        GrowingValues(write.registry, write.constants, write.imports, write.rows),
        write.findings,
        CheckedValues(snapshot, options).evaluate,
        options,
    )
