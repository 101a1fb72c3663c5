"""Record other blocks in the place of a trace's, in children, even if they raise."""

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch

from meta_magic.errors import TrialError
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_children,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.accumulation import (
    Parts,
    accumulate,
    find_made_anew,
    read_parts,
)
from meta_magic.trials.blocks import (
    as_size,
    enter_modes,
    find_unbound,
    list_sizes,
    parse_block,
    restore_variables,
    set_sizes,
)
from meta_magic.trials.sandbox import Refused, enter_sandbox, is_refusal
from meta_magic.trials.trial_choices import Choice, Fault, check_choices, make_choices

T = TypeVar("T")

Question: TypeAlias = Callable[[Trace, Mapping[str, Any]], T]

SECONDS: Final = 60.0
"""What a trial may take, by default."""


class Change(NamedTuple):
    """What a child runs in the place of a block.

    Attributes:
        block: Its statements.
        sizes: Values that names have instead.
        choices: What is chosen.
        bound: Names that are bound anew for each part of a batch.
    """

    block: ast.Module
    sizes: Mapping[str, int]
    choices: Collection[Choice]
    bound: Collection[str]


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
        choices: What is changed; of ``CHOICES``, with arguments behind a colon.
        seconds: How long it may take.

    Raises:
        TrialError: It cannot be run again, or so; the message says why.
    """
    (answered,) = ask_trials(trace, question, [sizes], choices, seconds)
    if isinstance(answered, TrialError):
        raise answered
    return answered


def ask_trials(
    trace: Trace,
    question: Question[T],
    sizes: Sequence[Mapping[str, int]],
    choices: Collection[Choice] = (),
    seconds: float = SECONDS,
) -> list[T | TrialError]:
    """Record a trace's block again at several sizes, all at once.

    Args:
        trace: As of :func:`ask_trial`, like those that are not named here.
        question: The same.
        sizes: For each child the values that names of the block have instead.
        choices: The same.
        seconds: How long each may take.

    Returns:
        For each the answer, or why there is none.

    Raises:
        TrialError: It cannot be run again at all.
    """
    check_choices(choices)
    changes = [make_change(trace, own, choices) for own in sizes]
    asked = [partial(answer, check_rerun(trace), own, question) for own in changes]
    return ask_apart(asked, seconds)


def ask_apart(
    asked: Sequence[Callable[[], tuple[str | None, T | None]]], seconds: float
) -> list[T | TrialError]:
    """Return what functions answer, each in a child; or why one does not."""
    returned = ask_children(asked, seconds, seconds)
    late = f"it crashed, or took more than {seconds:g} s", None
    told: list[tuple[str | None, Any]] = [
        late if one is NO_ANSWER else one for one in returned
    ]
    return [value if reason is None else TrialError(reason) for reason, value in told]


def make_change(
    trace: Trace, sizes: Mapping[str, int], choices: Collection[Choice]
) -> Change:
    """Return what a child runs in the place of a trace's block."""
    block, parts = parse_block(check_rerun(trace)), read_parts(choices)
    bound = frozenset[str]()
    if parts is not None:
        bound = accumulate(block, parts)
        sizes = {**sizes, parts.name: share(trace, sizes, parts)}
    return Change(set_sizes(block, sizes), sizes, choices, bound)


def check_rerun(trace: Trace) -> Rerun:
    """Return what it takes to record a trace's block again.

    Raises:
        TrialError: That cannot be.
    """
    if trace.rerun is None:
        raise TrialError("only a cell, or a `with record()` in a file, is run again")
    if not can_fork():
        raise TrialError("no process can be forked here")
    return trace.rerun


def answer(
    rerun: Rerun, change: Change, question: Question[T]
) -> tuple[str | None, T | None]:
    """Return why there is no answer, and the answer; runs in a child."""
    variables = restore_variables(rerun, change.block, change.sizes)
    refused = enter_sandbox()
    faults: list[Fault] = [partial(find_made_anew, change.bound, variables)]
    choose = partial(make_choices, change.choices, rerun.options.device, faults)
    trace = record_block(rerun, change.block, variables, choose)
    if refused:
        return f"it {refused[0]}", None
    if trace.error is not None:
        may_be_refused = is_refusal(trace.error)
        why = " (here it may write no file)" if may_be_refused else ""
        return f"it raises {trace.error}{why}", None
    for find_fault in faults:
        reason = find_fault()
        if reason is not None:
            return f"it {reason}", None
    return None, question(trace, variables)


def read_size(
    trace: Trace, name: str, prepare: Callable[[], None] = lambda: None
) -> int:
    """Return what a name stood for when the block had run.

    Args:
        trace: What was recorded of it.
        name: The name.
        prepare: Called if it must run for that.

    Raises:
        TrialError: It is no positive integer.
    """
    rerun = check_rerun(trace)
    known = list_sizes(rerun).get(name) or find_unbound(rerun, name)
    if known is None:
        prepare()
        known = ask_trial(trace, lambda _, variables: as_size(variables.get(name)))
    size = as_size(known)
    if size is None:
        raise TrialError(f"no name {name!r} of the block stands for a positive integer")
    return size


def share(trace: Trace, sizes: Mapping[str, int], parts: Parts) -> int:
    """Return the size of one part of a batch.

    Raises:
        TrialError: The batch cannot be split into as many, or has no size.
    """
    whole = sizes.get(parts.name) or read_size(trace, parts.name)
    if whole % parts.number:
        raise TrialError(f"{parts.name}={whole} is not split into {parts.number} parts")
    return whole // parts.number


def record_block(
    rerun: Rerun,
    block: ast.Module,
    variables: dict[str, Any],
    choose: Callable[[], AbstractContextManager[object]],
    *,
    is_probe: bool = False,
) -> Trace:
    """Run a block under a recording of its own, which sees its choices made.

    Args:
        rerun: What is known of the block.
        block: Its statements.
        variables: Its variables.
        choose: Makes the choices.
        is_probe: Whether it is only asked if the block runs; as of ``Recording``.
    """

    def run() -> object:
        with torch.inference_mode(rerun.modes.is_inference):
            enter_modes(rerun.modes)
            with choose():
                return run_block(rerun, block, variables)

    recording = Recording(
        rerun.file, options=rerun.options, namespace=variables, is_probe=is_probe
    )
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
        For each the answer_variant, or why there is none.

    Raises:
        TrialError: Nothing can be recorded in the place of it.
    """
    rerun = check_rerun(trace)
    return ask_apart([partial(answer_variant, rerun, one) for one in variants], seconds)


def answer_variant(rerun: Rerun, variant: Variant) -> tuple[str | None, Any]:
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
