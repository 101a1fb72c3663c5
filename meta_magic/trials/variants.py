"""Record other blocks in the place of a trace's, in children, even if they raise."""

import ast
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import restore_variables
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import Question, ask_apart, check_rerun, record_block

__all__ = ["Variant", "ask_variants"]


class Variant(NamedTuple):
    """A block that a child records in the place of a trace's.

    Attributes:
        block: Its statements.
        around: Makes a context in which they run, within the recording.
        question: Given the recording, and the block's variables when it has run or
            raised; returns what can be pickled.
    """

    block: ast.Module
    around: Callable[[], AbstractContextManager[object]]
    question: Question[Any]


def ask_variants(
    trace: Trace, variants: Sequence[Variant], seconds: float
) -> list[Any | TrialError]:
    """Record other blocks in the place of a trace's, all at once.

    Args:
        trace: What was recorded of it.
        variants: The blocks.
        seconds: How long each may take.

    Returns:
        For each the answer, or why there is none.

    Raises:
        TrialError: Nothing can be recorded in the place of it.
    """
    rerun = check_rerun(trace)
    return ask_apart([partial(answer, rerun, one) for one in variants], seconds)


def answer(rerun: Rerun, variant: Variant) -> tuple[str | None, Any]:
    """Return why a variant has no answer, and the answer; runs in a child."""
    variables = restore_variables(rerun, variant.block, {})
    refused = enter_sandbox()
    trace = record_block(rerun, variant.block, variables, variant.around)
    if refused:
        return f"it {refused[0]}", None
    try:
        return None, variant.question(trace, variables)
    except TrialError as error:
        return str(error), None
