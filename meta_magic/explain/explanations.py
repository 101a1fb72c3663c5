"""Why a recorded block failed: where, on what, and which rule it broke."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.explain.accepted import Accepted, list_accepted
from meta_magic.explain.backward_edits import list_backward_edits
from meta_magic.explain.backward_errors import Backward, is_backward
from meta_magic.explain.candidates import list_edits
from meta_magic.explain.edited_runs import Block, find_block
from meta_magic.explain.explanation_text import format_explanation
from meta_magic.explain.given_names import (
    describe_module,
    find_maker,
    name_operands,
    read_text,
    tell_returned,
)
from meta_magic.explain.lineage_records import Lineage
from meta_magic.explain.loading_errors import list_made_lines, tell_loading
from meta_magic.explain.probing import Probe
from meta_magic.explain.program_text import Program
from meta_magic.explain.refused_sizes import Sight, trace_refused
from meta_magic.explain.repairs import Repair, try_edits
from meta_magic.explain.rules import find_rules
from meta_magic.explain.situations import Situation, list_written
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_child,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.options import Options
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trials.trial import check_rerun

if TYPE_CHECKING:
    from meta_magic.explain.edits import Edit

__all__ = ["Explanation", "explain"]

SECONDS: Final = 5.0
"""What probing may take."""

LONGEST: Final = 5.0
"""Seconds of a block that is not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a block failed; ``print`` shows it.

    Attributes:
        error: Type and text of the error.
        line: Line of the cell, or else of the user's file; None if no line of his is
            on the way.
        where: The innermost place in the user's own code: ``line 12``, or of another
            file ``model.py:12``; "" for none.
        expression: What stands there.
        callers: The places in the user's own code on the way there, outermost first,
            and what stands at each.
        module: The module that was called: class and name; "" outside of modules.
        given: The tensors that the failed call was given.
        rules: What it asks for, in sentences.
        repairs: Edits of the cell with which it ran to its end, the smallest first.
        n_tried: How many edits were tried.
        declined: Why no edits were tried, in words; "" if some were, or there are none.
        lineages: Where the sizes come from that are refused.
        culprits: Lines of the cell where the mistake may be: those of repairs, then of
            numbers that refused sizes come from, and of what made the operands.
    """

    error: str
    line: int | None
    where: str
    expression: str
    callers: tuple[tuple[str, str], ...]
    module: str
    given: tuple[Operand, ...]
    rules: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    n_tried: int = 0
    declined: str = ""
    lineages: tuple[Lineage, ...] = ()
    culprits: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """How the user's code writes the tensors, and what callers call them."""
        names = (name for one in self.given for name in (one.name, *one.aliases))
        return tuple(dict.fromkeys(names))

    @property
    def text(self) -> str:
        """The whole of it, but for the error."""
        return format_explanation(self)

    def __str__(self) -> str:
        return f"{self.error}\n{self.text}"


def explain(trace: Trace) -> Explanation | None:
    """Return why a trace's block failed; None if it did not."""
    failed = trace.failed
    if trace.error is None or failed is None:
        return None
    frames = find_frames(trace, failed)
    position = frames[-1] if frames else None
    found = Explanation(
        error=trace.error,
        line=trace.error_line or (position.line if position else None),
        where=locate(position, frames) if position else "",
        expression=read_text(position),
        callers=tuple((locate(at, frames), read_text(at)) for at in frames[:-1]),
        module=describe_module(trace),
        given=(),
    )
    try:
        return add_findings(trace, name_operands(trace, failed), found)
    except Exception as error:  # noqa: BLE001  never in the place of the user's own
        words = f"This could not be explained: {type(error).__name__}: {error}"
        return replace(found, rules=(words.partition("\n")[0],))
    except KeyboardInterrupt:
        return replace(found, rules=("This was interrupted while it was explained.",))


def find_frames(trace: Trace, failed: FailedCall) -> list[SourcePosition]:
    """Return the user's lines on the way to a call, from the cell on if it was one."""
    files = [frame.file for frame in failed.frames]
    first = files.index(trace.cell.file) if trace.cell.file in files else 0
    return list(failed.frames[first:])


def locate(at: SourcePosition, frames: Sequence[SourcePosition]) -> str:
    """Return where a position is: of another file than the first's with its name."""
    is_near = at.file == frames[0].file
    return f"line {at.line}" if is_near else f"{PurePath(at.file).name}:{at.line}"


class Diagnosis(NamedTuple):
    """What is wrong with a call.

    Attributes:
        rules: What it asks for, in sentences.
        lines: Where the mistake may be.
        write_edits: Given the program, returns edits that may mend it.
        operands: Tensors that it is about, and that the call was not given.
        lineages: Where the sizes come from that are refused.
        declined: Why the block was not run again, in words.
    """

    rules: tuple[str, ...]
    lines: Sequence[int]
    write_edits: "Callable[[Program], list[Edit]]"
    operands: tuple[Operand, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    declined: str = ""


def add_findings(trace: Trace, failed: FailedCall, found: Explanation) -> Explanation:
    """Return an explanation with operands, rules, and repairs that were tried."""
    declined = find_reason(trace)
    block = find_block(trace)
    diagnosis = diagnose(trace, failed, block, declined)
    declined = declined or diagnosis.declined
    repairs: tuple[Repair, ...] = ()
    n_tried = 0
    if block is not None and not declined:
        edits = diagnosis.write_edits(Program(block.text, block.lines))
        repairs, n_tried = try_edits(trace, block, edits)
    lines = (*(repair.line for repair in repairs), *diagnosis.lines)
    return replace(
        found,
        given=(*failed.operands, *diagnosis.operands),
        rules=diagnosis.rules,
        repairs=repairs,
        n_tried=n_tried,
        declined=declined if failed.function or diagnosis.rules else "",
        lineages=diagnosis.lineages,
        culprits=tuple(dict.fromkeys(lines)),
    )


def find_reason(trace: Trace) -> str:
    """Return why a trace's block is not run again, in words; "" if it may be."""
    try:
        check_rerun(trace)
    except TrialError as error:
        return str(error)
    is_long = trace.seconds > LONGEST
    return f"it took {trace.seconds:.0f} s to fail" if is_long else ""


def diagnose(
    trace: Trace, failed: FailedCall, block: Block | None, declined: str
) -> Diagnosis:
    """Return what is wrong with a call that was made in a block.

    Args:
        trace: The trace that it ended.
        failed: The call.
        block: The block, if it may be edited.
        declined: Why the block is not run again; "" if it may be.
    """
    finding = Backward(trace, failed).find() if is_backward(failed) else None
    if finding is not None:
        at = [] if finding.line is None else [finding.line]
        write = partial(list_backward_edits, finding=finding)
        return Diagnosis((finding.rule,), at, write, finding.operands)
    calls = [find_maker(trace, operand.tensor) for operand in failed.operands]
    made = [call.line for call in calls if call and call.line]
    makers = [call.position if call else None for call in calls]
    situate = partial(make_situation, trace, failed, block, makers)
    told = (*failed.remarks, *tell_returned(trace, failed))
    loading = failed.loading
    if loading is not None:
        told = (*tell_loading(trace, failed, loading),)
        made = [*list_made_lines(trace, failed, loading)]
    answer = None
    if not told:
        answer = ask_probe(trace, failed, list_written(block, failed, makers))
    rules, accepted = answer or (told, Accepted())
    sight = Sight({}, ()) if declined else trace_refused(trace, failed)
    lineages = tuple(refused.lineage for refused in sight.refused)

    def write_edits(program: Program) -> "list[Edit]":
        return list_edits(situate(program, accepted, sight))

    lines = [*list_lines(lineages), *made]
    return Diagnosis(
        rules, lines, write_edits, lineages=lineages, declined=sight.declined
    )


def make_situation(  # noqa: PLR0913, PLR0917  what is known, from several places
    trace: Trace,
    failed: FailedCall,
    block: Block | None,
    makers: Sequence[SourcePosition | None],
    program: Program,
    accepted: Accepted,
    sight: Sight,
) -> Situation:
    """Return what is known of a failed call when edits are sought."""
    file = block.rerun.file if block else None
    return Situation(
        program=program,
        call=failed,
        error=trace.error or "",
        makers=[at if at and at.file == file else None for at in makers],
        accepted=accepted,
        seen=sight.seen if block and block.rerun.text is not None else {},
        roots=[step for refused in sight.refused for step in refused.lineage.roots],
    )


def list_lines(lineages: Sequence[Lineage]) -> Iterator[int]:
    """Yield the lines of chains, those first where numbers are written."""
    steps = [step for lineage in lineages for step in lineage.steps]
    for step in sorted(steps, key=lambda step: not step.is_written):
        if step.line is not None:
            yield step.line


def ask_probe(
    trace: Trace, failed: FailedCall, written: Sequence[int]
) -> tuple[tuple[str, ...], Accepted] | None:
    """Return the rules that a call broke and what it accepts, found in a child.

    None where that cannot be found out.
    """
    function = failed.function
    if function is None or not (failed.is_whole and can_fork()):
        return None
    options = trace.rerun.options if trace.rerun else Options()

    def record(run: Callable[[], object]) -> object:  # refused is what the CPU refuses
        return Recording("", options=options, is_probe=True).guard.run(run)

    def run(*, is_careful: bool) -> tuple[tuple[str, ...], Accepted]:
        leave_dynamo_out()
        probe = Probe(function, failed, record, is_careful=is_careful)
        return find_rules(probe), list_accepted(probe, written)

    start = monotonic()
    answered = ask_child(partial(run, is_careful=False), SECONDS, SECONDS)
    if answered is NO_ANSWER and monotonic() < start + SECONDS:  # it crashed
        answered = ask_child(partial(run, is_careful=True), SECONDS, SECONDS)
    return None if answered is NO_ANSWER else answered
