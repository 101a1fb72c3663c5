"""Record a block again in a child, and bring back the answer to a question."""

import ast
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from meta_magic.errors import TrialError
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_child,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.file_locks import is_refusal
from meta_magic.trials.sandbox import Refused, enter_sandbox
from meta_magic.trials.sizes import set_sizes
from meta_magic.trials.what_ifs import Choice, check_choices, make_choices

__all__ = ["SECONDS", "ask_trial"]

T = TypeVar("T")

Question: TypeAlias = Callable[[Trace, Mapping[str, Any]], T]

SECONDS: Final = 60.0
"""What a trial may take, by default."""


def ask_trial(
    trace: Trace,
    question: Question[T],
    sizes: Mapping[str, int] = MappingProxyType({}),
    choices: Collection[Choice] = (),
    seconds: float = SECONDS,
) -> T:
    """Record a trace's block again in a child, and return the answer to a question.

    Args:
        trace: What was recorded of it.
        question: Given the recording, and the block's variables when it has run;
            returns what can be pickled.
        sizes: Values that names of the block have instead.
        choices: What is changed.
        seconds: How long it may take.

    Raises:
        TrialError: It cannot be run again, or so; the message says why.
    """
    check_choices(choices)
    rerun = trace.rerun
    if rerun is None:
        raise TrialError("it was run by `exec`, or comes from another process")
    if not can_fork():
        raise TrialError("no process can be forked here")
    block = set_sizes(parse_block(rerun), sizes)
    run = partial(answer, rerun, block, question, sizes, choices)
    returned = ask_child(run, seconds, seconds)
    if returned is NO_ANSWER:
        raise TrialError(f"it crashed, or took more than {seconds:g} s")
    reason, value = returned
    if reason is not None:
        raise TrialError(reason)
    result: T = value
    return result


def answer(
    rerun: Rerun,
    block: ast.Module,
    question: Question[T],
    sizes: Mapping[str, int],
    choices: Collection[Choice],
) -> tuple[str | None, T | None]:
    """Return why there is no answer, and the answer; runs in a child."""
    variables = restore_variables(rerun, block, sizes)
    refused = enter_sandbox()
    choose = partial(make_choices, choices, rerun.options.device)
    trace = record_block(rerun, block, variables, choose)
    if refused:
        return f"it {refused[0]}", None
    if trace.error is not None:
        may_be_refused = is_refusal(trace.error)
        why = " (here it may write no file)" if may_be_refused else ""
        return f"it raises {trace.error}{why}", None
    return None, question(trace, variables)


def record_block(
    rerun: Rerun,
    block: ast.Module,
    variables: dict[str, Any],
    choose: Callable[[], AbstractContextManager[object]],
) -> Trace:
    """Run a block under a recording of its own, which sees its choices made."""

    def run() -> object:
        with choose():
            return run_block(rerun, block, variables)

    recording = Recording(rerun.file, options=rerun.options, namespace=variables)
    error: BaseException | None = None
    value = None
    try:
        value = recording.guard.run(run)
    except (Exception, Refused, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001  the block's
        error = raised
    trace = recording.finish(error, variables, CellSource(file=rerun.file))
    del value  # a cell's last value lives until then
    return trace


def run_block(rerun: Rerun, block: ast.Module, variables: dict[str, Any]) -> object:
    """Run statements; return the value of a last expression, if it is a cell's."""
    body, last = list(block.body), None
    if rerun.text is not None and body and isinstance(body[-1], ast.Expr):
        last, body = ast.Expression(body[-1].value), body[:-1]
    code = compile(ast.Module(body, []), rerun.file, "exec")
    exec(code, variables)  # noqa: S102  the user's own code
    if last is None:
        return None
    return eval(compile(last, rerun.file, "eval"), variables)  # noqa: S307  as well
