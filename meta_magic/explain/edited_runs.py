"""Run a failed block with edits of its text, in children.

Most edits do not mend a block. So a child tries many, one after the other, from the
variables as they were before it. Of a ``with record()`` only the body is edited: the
rest of the file has run, and its results stay. Read :class:`Workers` first.
"""

import ast
import linecache
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import nan
from time import process_time
from typing import Any, Final, NamedTuple, Self, TypeAlias

from meta_magic.children import NO_ANSWER, Child, Inbox, ask_children, can_fork
from meta_magic.errors import TrialError
from meta_magic.explain.edits.program_text import Edit, SourceText, apply_edit
from meta_magic.torch_private.replacing import leave_dynamo_out
from meta_magic.trace.modules import count_elements
from meta_magic.trace.options import Options, Rerun
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import (
    find_bound,
    parse_block,
    restore_variables,
    split_modules,
)
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

SECONDS: Final = 6.0
"""Processor time of a child that runs many edits, besides twice that of the block."""

SECONDS_OF_ONE: Final = 1.0
"""The same of a child that runs one."""

SECONDS_OF_VALUE: Final = 0.1
"""How long a value may take by an estimate; else it is assumed to be NaN."""

HALF: Final = 0.5
"""The part of a mask that is assumed to be true if it takes longer than that."""

PATIENCE: Final = 6.0
"""How many seconds to wait for a child on a busy machine."""

SECONDS_OF_MANY: Final = 0.25
"""Processor time after which a child that tries many edits begins no other."""

NO_END: Final = "it crashed, or did not end"


class Ending(NamedTuple):
    """The end of a block that ran, or that passed the failed call.

    Attributes:
        n_parameters: Of all its modules.
        shape: Of the last tensor that it made; None if it made none.
        then: Which later line fails, and how; "" if the block ran to its end.
    """

    n_parameters: int
    shape: tuple[int, ...] | None
    then: str = ""


Ended: TypeAlias = Ending | str
"""The outcome of a block that passed the failed call; else what stopped it, such as
the sandbox, or "" for an error there."""


@dataclass(frozen=True)
class EditableBlock:
    """A block, and what of it may be edited.

    Attributes:
        text: The text to edit, as Python: the file, or the cell at its lines there.
        typed: The text as the user typed it.
        first_line: The number of the first line that was typed.
        lines: Lines that may be edited: the user typed them, and they run again.
        frames: The lines of its file on the way to the failed call, outermost first.
        failed_line: The last of them, if torch was called there.
    """

    rerun: Rerun
    text: str
    typed: str
    first_line: int
    lines: frozenset[int]
    seconds: float
    frames: tuple[SourcePosition, ...] = ()
    failed_line: int | None = None

    @cached_property
    def program(self) -> SourceText:
        """The lines that may be edited as a syntax tree."""
        return SourceText(self.text, self.lines)

    @cached_property
    def bound(self) -> set[str]:
        """The names that the block binds."""
        _, own = split_modules(self.rerun, parse_block(self.rerun).body)
        return find_bound(ast.Module(own, []))

    def parse(self, edit: Edit) -> tuple[ast.Module, dict[str, Any]] | None:
        """Return the statements after an edit, and their variables; runs in a child.

        None if the edited text cannot run.
        """
        try:
            body = parse_block(self.rerun, apply_edit(self.text, edit))
            return body, restore_variables(self.rerun, body, {}, self.bound)
        except (TrialError, SyntaxError):
            return None


def find_block(trace: Trace) -> EditableBlock | None:
    """Return a trace's block with its editable lines; None if there are none."""
    rerun = trace.rerun
    if rerun is None or not can_fork():
        return None
    failed = () if trace.failed is None else trace.failed.frames
    frames = tuple(frame for frame in failed if frame.file == rerun.file)
    if rerun.text is None:
        text = typed = "".join(linecache.getlines(rerun.file))
        first, lines = 1, _find_lines(rerun)
        if not lines:
            return None
    else:
        text, typed, first = rerun.text, trace.source, trace.cell.first_line
        now, each = text.split("\n"), enumerate(typed.split("\n"), first)
        lines = frozenset(at for at, line in each if now[at - 1 : at] == [line])
    line = frames[-1].line if frames else None
    failed_line = line if line in _list_lines(trace, rerun) else None
    return EditableBlock(
        rerun=replace(rerun, options=_leave_out_values(rerun.options)),
        text=text,
        typed=typed,
        first_line=first,
        lines=lines,
        seconds=trace.seconds,
        frames=frames,
        failed_line=failed_line,
    )


def _leave_out_values(options: Options) -> Options:
    """Return options with which a value that takes long is assumed.

    Whether a training step runs with an edit does not rest on the loss that it prints.
    """
    assumed = options.assumed
    return options._replace(
        limits=options.limits._replace(seconds=SECONDS_OF_VALUE),
        assumed=assumed._replace(
            value=nan if assumed.value is None else assumed.value,
            nonzero=HALF if assumed.nonzero is None else assumed.nonzero,
        ),
    )


def _find_lines(rerun: Rerun) -> frozenset[int]:
    try:
        body = parse_block(rerun).body
    except (TrialError, SyntaxError):
        return frozenset()
    last = body[-1].end_lineno or body[-1].lineno
    return frozenset(range(body[0].lineno, last + 1))


class Workers:
    """Children that first run another function, and then a block with edits.

    The children that probe the failed call go on as those that try edits, as a fork and
    the memory that a first run copies take as long as ten runs.
    """

    def __init__(self, block: EditableBlock | None) -> None:
        self.block = block
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def start(self, first: Callable[[], Any] = lambda: None) -> Child:
        """Start a child with its first function, whose result is to be read."""
        seconds = SECONDS + (2 * self.block.seconds if self.block else 0)
        self._children.append(Child(partial(_work, self.block, first), seconds))
        return self._children[-1]

    def read(self, child: Child) -> Any:
        """Return the answer of a child, or ``NO_ANSWER``: then it is ended."""
        answered = child.read(PATIENCE)
        if answered is NO_ANSWER:
            child.end()
            self._children.remove(child)
        return answered

    def run(self, parts: Sequence[Sequence[Edit]]) -> list[Any]:
        """Run the block with some edits in each child; return what each screened."""
        while len(self._children) < len(parts):
            self.read(self.start())
        asked = [*zip(self._children, parts, strict=False)]
        for child, part in asked:
            child.send(part)
        return [self.read(child) for child, _ in asked]


def _work(
    block: EditableBlock | None, first: Callable[[], Any]
) -> Generator[Any, Inbox, None]:
    """Run a first function, then a block with the edits that are sent."""
    inbox = yield first()
    leave_dynamo_out()  # code that the failed block did not reach may import dynamo
    refused = enter_sandbox()
    while block is not None:
        edits: Sequence[Edit] = inbox.read()
        inbox = yield _run_in_turn(block, edits, refused)


def run_alone(
    block: EditableBlock, edits: Sequence[Edit], *, is_probe: bool = True
) -> list[Ended]:
    """Run a block with each of some edits, in a child of its own."""

    def run(edit: Edit) -> Ended:
        leave_dynamo_out()
        return _run_edit(block, edit, enter_sandbox(), is_probe=is_probe)

    asked = [partial(run, edit) for edit in edits]
    answers = ask_children(asked, SECONDS_OF_ONE + 2 * block.seconds, PATIENCE)
    return [NO_END if answer is NO_ANSWER else answer for answer in answers]


class Screened(NamedTuple):
    """How a block ended with edits that one child tried.

    Attributes:
        ended: By edit how it ended.
        is_sure: Whether the block without an edit still fails after all runs as it did
            before: then no run changed anything for the next one.
        seconds: The processor time that it took.
    """

    ended: dict[Edit, Ended]
    is_sure: bool = True
    seconds: float = SECONDS_OF_ONE


def _run_in_turn(
    block: EditableBlock, edits: Sequence[Edit], refused: list[str]
) -> Screened:
    """Run a block with one edit after the other; runs in a child.

    The child stops when its time is over, or after some different outcomes.
    """
    start = process_time()
    ended: dict[Edit, Ended] = {}
    found, rest = list[Ended](), [*edits]
    while rest and len({*found}) < MAX_OF_CHILD and len(found) < MAX_ALIKE:
        if ended and process_time() > start + SECONDS_OF_MANY:
            break
        edit, *rest = rest
        ended[edit] = _run_edit(block, edit, refused, is_probe=True)
        if is_whole(ended[edit]):
            found.append(ended[edit])
            rest = [one for one in rest if one.cost <= edit.cost + MAX_WORSE]
    has_passed = any(isinstance(one, Ending) for one in ended.values())
    again = partial(_run_edit, block, NO_EDIT, refused, is_probe=True)
    return Screened(ended, not has_passed or again() == "", process_time() - start)


def _run_edit(
    block: EditableBlock, edit: Edit, refused: list[str], *, is_probe: bool
) -> Ended:
    """Run a block with an edit in this process, under a recording of its own."""
    refused.clear()
    parsed = block.parse(edit)
    if parsed is None:
        return ""
    trace = record_block(block.rerun, *parsed, nullcontext, is_probe=is_probe)
    if refused:
        return f"it {refused[0]}"
    if trace.error is None:
        return read_ending(trace) if _has_passed(block, edit, trace) else ""
    frames = () if trace.failed is None else trace.failed.frames
    if not _is_later(block, edit, frames) or trace.error.startswith(UNBOUND):
        return ""
    line = [frame.line for frame in frames if frame.file == block.rerun.file][-1]
    error = trace.error.partition("\n")[0]
    shown = error if len(error) <= MAX_ERROR else f"{error[:MAX_ERROR]}..."
    return read_ending(trace)._replace(then=f"then line {line} fails: {shown}")


def _has_passed(block: EditableBlock, edit: Edit, trace: Trace) -> bool:
    """Whether a block that ran came to the line of the failed call, unless edited.

    A loop of no steps does not.
    """
    line = block.failed_line
    return line is None or line in edit.lines or line in _list_lines(trace, block.rerun)


def _list_lines(trace: Trace, rerun: Rerun) -> set[int]:
    """Return the lines of a block's file that called torch."""
    return {at.line for at in trace.program.positions if at.file == rerun.file}


def is_whole(one: Ended) -> bool:
    """Whether a block ran to its end."""
    return isinstance(one, Ending) and not one.then


def _is_later(
    block: EditableBlock, edit: Edit, frames: Sequence[SourcePosition]
) -> bool:
    """Whether an error comes from a later line than that at which the block failed."""
    own = [frame for frame in frames if frame.file == block.rerun.file]
    for before, now in zip(block.frames, own, strict=False):
        if before != now:
            is_same = before.line == now.line and now.line in edit.lines
            start, end = _read_ends(now)
            first, last = _read_ends(before)
            is_after = start > last or (start <= first and last <= end)  # or around it
            return before.function == now.function and not is_same and is_after
    return False


def _read_ends(at: SourcePosition) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where an expression begins and ends."""
    return (at.line, at.column or 0), (at.end_line, at.end_column or 0)


def read_ending(trace: Trace) -> Ending:
    """Return the outcome of a block that ran."""
    last = trace.ops[-1].outputs if len(trace.ops) else ()
    n_parameters = count_elements(trace.modules, "parameter")
    return Ending(n_parameters, tuple(last[0].shape) if last else None)


UNBOUND: Final = ("NameError", "UnboundLocalError")
"""Errors after an edit that binds a name no longer."""

NO_EDIT: Final = Edit(stretches=(), cost=0.0)

MAX_ERROR: Final = 100

MAX_OF_CHILD: Final = 2
"""After so many different outcomes a child tries no other edit."""

MAX_ALIKE: Final = 4
"""The same of outcomes that may be equal."""

MAX_WORSE: Final = 1.8
"""Once an edit has run, edits that cost so much more are not tried."""
