"""Check indices and classes by a replay, where no bounds of theirs are known."""

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
"""A check may take this part of what little values may take: an eighth."""


def make_checks(
    write: Written, snapshot: Callable[[], Program], options: Options
) -> ValueChecks:
    """Return what refuses calls for what some operands hold.

    Args:
        write: The parts that write the recording.
        snapshot: Returns the program recorded so far.
        options: What one value may take, and whether all are to be checked.
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
