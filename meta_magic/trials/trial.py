"""Record a block again in a child process, and bring back the answer to a question.

``trace.fit("H100", vary={"batch": ...})`` records the user's block at other batch
sizes with :func:`ask_trials`. Without the child, a second run would write the user's
files and change the user's variables. Read :func:`ask_trial`, then
:func:`record_block`.
"""

import ast
import linecache
import signal
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import monotonic
from types import MappingProxyType, ModuleType
from typing import Any, Final, TypeAlias, TypeVar, cast

import torch

from meta_magic.children import (
    NO_ANSWER,
    Child,
    Inbox,
    ask_children,
    can_fork,
    lead_group,
)
from meta_magic.errors import TrialError, hint_at
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import (
    as_size,
    enter_modes,
    find_constants,
    is_variable,
    list_sizes,
    parse_block,
    restore_variables,
    set_sizes,
    split_block,
    split_modules,
)
from meta_magic.trials.sandbox import (
    Refused,
    enter_sandbox,
    is_refusal,
    note_last_value,
)
from meta_magic.trials.trial_choices import (
    Choice,
    Fault,
    accumulate,
    check_choices,
    find_remade,
    make_choices,
    read_parts,
)

T = TypeVar("T")

Question: TypeAlias = Callable[[Trace, Mapping[str, Any]], T]
"""A function of the new trace and the block's variables; its result can be pickled."""

SECONDS: Final = 60.0
"""How long a trial may take, by default."""

IDLE: Final = 5
"""Seconds without a question after which a template ends: it has the parent's files."""

AHEAD: Final = 5.0
"""Seconds after a question in which a template begins to record other sizes."""

PAUSE: Final = 0.02
"""Seconds between two looks at what it records."""

Key: TypeAlias = frozenset[tuple[str, int]]
"""Sizes by name."""


def ask_trial(
    trace: Trace,
    question: Question[T],
    sizes: Mapping[str, int] = MappingProxyType({}),
    choices: Collection[Choice] = (),
    seconds: float = SECONDS,
) -> T:
    """Record a trace's block again in a child, and return the answer to a question.

    Args:
        trace: The recording of the block.
        question: Given the new recording, and the block's variables at its end.
        sizes: Values that replace those of names in the block.
        choices: Changes of torch, or contexts to run the block in.
        seconds: How long the child may take.

    Raises:
        TrialError: The block cannot run again, does not take these sizes or choices,
            raises, needs too long, or would have a side effect; the message says which.
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
    *,
    at_once: int | None = None,
    asks_failed: bool = False,
    per_child: int = 1,
) -> list[T | TrialError]:
    """Record a trace's block again at several sizes, all at once.

    Args:
        trace: As of :func:`ask_trial`, like all arguments that are not listed here.
        question: The same.
        sizes: For each child, the values that replace those of names.
        choices: The same.
        seconds: How long each child may take.
        at_once: How many children there are at most at a time; None for all.
        asks_failed: Whether the question is asked of a block that raised, too.
        per_child: How many sizes one child records, one after the other. At its end it
            records its first size again. If the answer differs, the block has changed
            global state, and each size is recorded in a child of its own.

    Returns:
        For each child the answer, or the reason why there is none.

    Raises:
        TrialError: The block cannot run again at all.
    """
    check_choices(choices)
    rerun = check_rerun(trace)
    changed = [_change_block(trace, own, choices) for own in sizes]
    answer = partial(_answer_trial, rerun, question, choices, asks_failed=asks_failed)
    each = [partial(answer, *own) for own in changed]
    if per_child == 1:
        alone = [partial(_answer_one, one) for one in each]
        return answer_all(alone, seconds, at_once)
    parts = [each[at : at + per_child] for at in range(0, len(each), per_child)]
    asked = [partial(_answer_in_turn, part) for part in parts]
    found: list[list[T | TrialError] | TrialError]
    found = answer_all(asked, per_child * seconds, at_once)
    return [
        one
        for part, answers in zip(parts, found, strict=True)
        for one in (
            answer_all([partial(_answer_one, one) for one in part], seconds, at_once)
            if isinstance(answers, TrialError)
            else answers
        )
    ]


def run_template(
    trace: Trace, question: Question[T], seconds: float, at_once: int
) -> Generator[Any, Inbox, None]:
    """Record a trace's block at sizes that are sent; runs in a child, the *template*.

    Each recording is made in a child of the template, and so begins with the state that
    the template was forked with. The first sizes that are sent are wanted now, unless
    they are empty. The others are recorded ahead, until the next sizes are sent.

    Args:
        trace: As of :func:`ask_trial`, like all arguments that are not listed here.
        question: Is asked of a block that raised, too.
        seconds: How long each recording may take.
        at_once: How many recordings run at the same time.

    Yields:
        The answers, or why there are none, by sizes: those that are wanted now, and
        those that were recorded ahead since the last time.
    """
    if RARE_COLLECTION.n_entered:  # it has torch's modes, and so it gives no answer
        return
    lead_group()
    running: dict[Key, Child] = {}
    done: dict[Key, T | TrialError] = {}
    waiting: list[Key] = []

    def start() -> None:
        key = waiting.pop(0)
        running[key] = Child(
            partial(_record_sizes, trace, question, dict(key)), seconds
        )

    def finish(key: Key) -> None:
        with running.pop(key) as child:
            done[key] = read_answer(child.read(seconds), seconds)

    def finish_ended() -> None:
        for key in [key for key, child in running.items() if child.is_done(0)]:
            finish(key)
            signal.alarm(IDLE)

    while True:
        inbox = yield done
        done = {}
        signal.alarm(IDLE)
        end = monotonic() + AHEAD
        while (running or waiting) and not inbox.is_here(PAUSE):
            finish_ended()
            if waiting and len(running) < at_once - 1 and monotonic() < end:
                start()
        each = [frozenset(sizes.items()) for sizes in inbox.read()]
        finish_ended()
        signal.alarm(0)
        for key in running.keys() - {*each}:
            running.pop(key).end()
        wanted, known = each[0], {*running, *done, frozenset()}
        waiting = [key for key in each if key not in known]
        while waiting and (len(running) < at_once or waiting[0] == wanted):
            start()
        if wanted in running:
            finish(wanted)


def _record_sizes(
    trace: Trace, question: Question[T], sizes: Mapping[str, int]
) -> tuple[str | None, T | None]:
    """Record a trace's block at some sizes; runs in a child of the template."""
    try:
        changed = _change_block(trace, sizes, ())
    except TrialError as error:
        return str(error), None
    rerun = check_rerun(trace)
    asked = partial(_answer_trial, rerun, question, (), *changed, asks_failed=True)
    return _answer_one(asked)


Asked: TypeAlias = Callable[[list[str]], tuple[str | None, T | None]]
"""Records a block once; given the sandbox's list of what was refused, returns the
reason why there is no answer, or the answer."""


def _answer_one(asked: Asked[T]) -> tuple[str | None, T | None]:
    """Record a block; runs in the child."""
    return asked(enter_sandbox())


def _answer_in_turn(
    asked: Sequence[Asked[T]],
) -> tuple[str | None, list[T | TrialError] | None]:
    """Record a block at several sizes; runs in the child.

    A refusal, or another answer to the first size at the end, is a reason.
    """
    refused = enter_sandbox()
    answers = [one(refused) for one in asked]
    if refused or (len(asked) > 1 and asked[0](refused) != answers[0]):
        return "it changes something for good", None
    return None, [
        TrialError(reason) if reason is not None else cast("T", value)
        for reason, value in answers
    ]


def answer_all(
    asked: Sequence[Callable[[], tuple[str | None, T | None]]],
    seconds: float,
    at_once: int | None = None,
) -> list[T | TrialError]:
    """Run functions, each in a child; a function returns a reason or an answer."""
    returned = ask_children(asked, seconds, seconds, at_once)
    return [read_answer(one, seconds) for one in returned]


def read_answer(returned: Any, seconds: float) -> Any | TrialError:
    """Return the answer that a child gave, or why there is none."""
    if returned is NO_ANSWER:
        return TrialError(f"it crashed, or took more than {seconds:g} s")
    reason, value = returned
    return value if reason is None else TrialError(reason)


def _change_block(
    trace: Trace, sizes: Mapping[str, int], choices: Collection[Choice]
) -> tuple[ast.Module, Mapping[str, int], frozenset[str]]:
    """Return a block at other sizes, its variables' sizes, and names bound in parts."""
    rerun = check_rerun(trace)
    block, parts = parse_block(rerun), read_parts(choices)
    bound = frozenset[str]()
    if parts is not None:
        bound = accumulate(block, parts)
        whole = sizes.get(parts.name) or read_size(trace, parts.name)
        size, rest = divmod(whole, parts.number)
        if rest:
            text = f"{parts.name}={whole} is not split into {parts.number} parts"
            raise TrialError(text)
        sizes = {**sizes, parts.name: size}
    fields = {name for name in sizes if not is_variable(rerun, block, name)}
    for name in fields:
        for constant in find_constants(block, name):
            constant.value = sizes[name]
    sizes = {name: size for name, size in sizes.items() if name not in fields}
    return set_sizes(block, sizes), sizes, bound


def check_rerun(trace: Trace) -> Rerun:
    """Return what a second run of a trace's block needs."""
    if trace.rerun is None:
        raise TrialError(
            "only a cell, or a `with record()` in a file, is run again; of a script "
            "meta_magic.sweep_ranks records other sizes"
        )
    if not can_fork():
        raise TrialError("no process can be forked here")
    return trace.rerun


def _answer_trial(
    rerun: Rerun,
    question: Question[T],
    choices: Collection[Choice],
    block: ast.Module,
    sizes: Mapping[str, int],
    bound: Collection[str],
    refused: list[str],
    *,
    asks_failed: bool,
) -> tuple[str | None, T | None]:
    """Return why there is no answer, or the answer; runs in the child's sandbox."""
    variables = restore_variables(rerun, block, sizes)
    faults: list[Fault] = [partial(find_remade, bound, variables)]
    choose = partial(make_choices, choices, rerun.options.device, faults)
    before, own = split_block(block, rerun.own_line)
    trace = None
    if before.body:  # cells and modules before it have recordings of their own
        trace = record_block(rerun, before, variables, nullcontext)
        if trace.error is not None and not (refused or asks_failed):
            return f"what it rests on raises {trace.error}", None
    if trace is None or trace.error is None:
        trace = record_block(rerun, own, variables, choose)
    if trace.error is not None and is_refusal(trace.error):
        refused.append(f"may not write a file here ({trace.error})")
    if refused:
        return f"it {refused[0]}: {_name_line(rerun, trace)}", None
    if trace.error is not None and not asks_failed:
        return f"it raises {trace.error}", None
    for find_fault in faults:
        reason = find_fault()
        if reason is not None:
            return f"it {reason}", None
    try:
        return None, question(trace, variables)
    except TrialError as error:
        return str(error), None


def _name_line(rerun: Rerun, trace: Trace) -> str:
    """Return what must leave a block that did what a trial may not do."""
    lines, where = linecache.getlines(rerun.file), "out of the block"
    if rerun.text is not None:
        lines, where = rerun.text.splitlines(), "to another cell"
    line = lines[trace.error_line - 1].strip() if trace.error_line else ""
    return f"move {f'`{line}`' if line else 'that'} {where}"


def read_size(
    trace: Trace, name: str, prepare: Callable[[], None] = lambda: None
) -> int:
    """Return the integer that a name had as its value when the block had run.

    ``prepare`` is called before the block runs again, if it must.
    """
    rerun = check_rerun(trace)
    known: object = list_sizes(rerun).get(name)
    block = parse_block(rerun)
    if known is None and not is_variable(rerun, block, name):
        constants = find_constants(block, name)
        known = constants[0].value if constants else None
    elif known is None:
        prepare()
        known = ask_trial(trace, lambda _, variables: as_size(variables.get(name)))
    size = as_size(known)
    if size is None:
        sizes = [*list_sizes(rerun)]
        others = f"; it has {', '.join(sizes)}" if sizes else ""
        raise TrialError(
            f"the block has no name {name!r} for a positive integer{others}"
            f"{hint_at(name, sizes)}"
        )
    return size


def record_block(
    rerun: Rerun,
    block: ast.Module,
    variables: dict[str, Any],
    choose: Callable[[], AbstractContextManager[object]],
    *,
    is_probe: bool = False,
) -> Trace:
    """Record a block in this process, in the context that ``choose`` makes."""
    recording = Recording(
        rerun.file, options=rerun.options, namespace=variables, is_probe=is_probe
    )
    error: BaseException | None = None
    value = None
    try:
        value = recording.guard.run(
            lambda: _run_in_modes(rerun, block, variables, choose)
        )
        note_last_value(value)
    except (Exception, Refused, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001  the block's
        error = raised
    trace = recording.finish(error, variables, CellSource(file=rerun.file))
    del value  # a cell's last value lives until then
    return trace


def _run_in_modes(
    rerun: Rerun,
    block: ast.Module,
    variables: dict[str, Any],
    choose: Callable[[], AbstractContextManager[object]],
) -> object:
    """Run a block in the modes of torch in which it ran before."""
    with torch.inference_mode(rerun.modes.is_inference):
        enter_modes(rerun.modes)
        with choose():
            return _run_block(rerun, block, variables)


def _run_block(rerun: Rerun, block: ast.Module, variables: dict[str, Any]) -> object:
    """Run statements; return the value of a cell's last expression."""
    by_module, body = split_modules(rerun, block.body)
    for name, statements in by_module.items():
        _run_module(name, statements, rerun.file)
    last = None
    if rerun.text is not None and body and isinstance(body[-1], ast.Expr):
        last, body = ast.Expression(body[-1].value), body[:-1]
    code = compile(ast.Module(body, []), rerun.file, "exec")
    exec(code, variables)  # noqa: S102  the user's own code
    if last is None:
        return None
    return eval(compile(last, rerun.file, "eval"), variables)  # noqa: S307  as well


def _run_module(name: str, statements: list[ast.stmt], file: str) -> None:
    """Run the statements of a module in a new module, which takes its place."""
    before = sys.modules[name]
    module = sys.modules[name] = ModuleType(name, before.__doc__)
    kept = ("__file__", "__loader__", "__package__", "__path__", "__spec__")
    vars(module).update({n: vars(before)[n] for n in kept if n in vars(before)})
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, module)
    exec(compile(ast.Module(statements, []), file, "exec"), vars(module))  # noqa: S102  as below


def answer_block(
    rerun: Rerun,
    block: ast.Module,
    around: Callable[[dict[str, Any]], AbstractContextManager[object]],
    question: Question[T],
    *,
    is_probe: bool = False,
) -> tuple[str | None, T | None]:
    """Return an answer about another block, or why there is none; runs in a child.

    Args:
        rerun: How the block was recorded before.
        block: Other statements, which run instead.
        around: Given their variables, makes their context within the recording.
        question: Is asked even if the block raised.
        is_probe: As of ``Recording``.
    """
    variables = restore_variables(rerun, block, {})
    refused = enter_sandbox()
    choose = partial(around, variables)
    trace = record_block(rerun, block, variables, choose, is_probe=is_probe)
    if refused:
        return f"it {refused[0]}", None
    try:
        return None, question(trace, variables)
    except TrialError as error:
        return str(error), None
