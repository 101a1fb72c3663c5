"""Check indices and classes by a replay, if no bounds of their values are known."""

from collections.abc import Callable

from torch import Tensor

from meta_magic.recording.intercept.value_checks import ValueChecks
from meta_magic.recording.rows.known_values import KnownValues
from meta_magic.replaying.evaluator import Evaluator
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.session.program_builder import Written
from meta_magic.trace.options import Options
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry

SHARE = 8
"""The share of the limits of a value that one check may take."""


def make_checks(
    write: Written, snapshot: Callable[[], Program], options: Options
) -> ValueChecks:
    """Return the checks that refuse calls whose operands have values out of range.

    Args:
        snapshot: Returns the program recorded so far.
        options: The limits of one value, and whether all values are checked.
    """
    limits = options.limits
    budget = ValueBudget(limits if options.check_values else limits.little(SHARE))
    evaluator = Evaluator(is_private=True)  # the trace shows nothing of checks

    def evaluate(storage: int, geometry: Geometry) -> Tensor:
        wanted = [(storage, geometry)]
        reals, _ = evaluator.evaluate(
            snapshot(), wanted, budget, can_assume=False, stops_at_limit=True
        )
        return reals[0]

    known = KnownValues(write.registry, write.constants, write.rows)
    write.imports.follow(known.find_written)
    return ValueChecks(write.registry, known, write.diagnostics, evaluate, options)
