"""Why a recorded block failed: where, on what, and which rule it broke."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from meta_magic.explain.accepted import Accepted, list_accepted
from meta_magic.explain.backward_edits import list_backward_edits
from meta_magic.explain.backward_errors import Backward, is_backward
from meta_magic.explain.candidates import list_edits
from meta_magic.explain.edited_runs import Block, find_block
from meta_magic.explain.given_names import (
    describe_module,
    find_maker,
    name_operands,
    read_text,
)
from meta_magic.explain.probing import Probe
from meta_magic.explain.program_text import Program
from meta_magic.explain.repairs import Repair, try_edits
from meta_magic.explain.rules import find_rules
from meta_magic.explain.seen_numbers import see_numbers
from meta_magic.explain.situations import Situation, list_written
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_child,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.options import Options
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.explain.edits import Edit

__all__ = ["Explanation", "explain"]

SECONDS: Final = 5.0
"""What probing may take."""

MAX_OPERANDS: Final = 8

MAX_CALLERS: Final = 4


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
        culprits: Lines of the cell where the mistake may be: those of repairs, then of
            what made the operands.
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
    culprits: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """How the user's code writes the tensors, and what callers call them."""
        names = (name for one in self.given for name in (one.name, *one.aliases))
        return tuple(dict.fromkeys(names))

    @property
    def text(self) -> str:
        """The whole of it, but for the error."""
        return "\n".join(walk_lines(self))

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
        return replace(found, rules=(words,))


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
    """

    rules: tuple[str, ...]
    lines: Sequence[int]
    write_edits: "Callable[[Program], list[Edit]]"


def add_findings(trace: Trace, failed: FailedCall, found: Explanation) -> Explanation:
    """Return an explanation with operands, rules, and repairs that were tried."""
    block = find_block(trace)
    diagnosis = diagnose(trace, failed, block)
    repairs: tuple[Repair, ...] = ()
    n_tried = 0
    if block is not None:
        edits = diagnosis.write_edits(Program(block.text, block.lines))
        repairs, n_tried = try_edits(trace, block, edits)
    lines = (*(repair.line for repair in repairs), *diagnosis.lines)
    return replace(
        found,
        given=failed.operands,
        rules=diagnosis.rules,
        repairs=repairs,
        n_tried=n_tried,
        culprits=tuple(dict.fromkeys(lines)),
    )


def diagnose(trace: Trace, failed: FailedCall, block: Block | None) -> Diagnosis:
    """Return what is wrong with a call that was made in a block."""
    finding = Backward(trace, failed).find() if is_backward(failed) else None
    if finding is not None:
        at = [] if finding.line is None else [finding.line]
        write = partial(list_backward_edits, finding=finding)
        return Diagnosis((finding.rule,), at, write)
    calls = [find_maker(trace, operand.tensor) for operand in failed.operands]
    made = [call.line for call in calls if call and call.line]
    file = block.rerun.file if block else None
    places = [call.position if call else None for call in calls]
    makers = [at if at and at.file == file else None for at in places]
    written: Sequence[int] = range(len(failed.operands))
    if block is not None:
        written = list_written(Program(block.text, block.lines), failed, makers)
    rules, accepted = ask_probe(trace, failed, written) or ((), Accepted())

    def write_edits(program: Program) -> "list[Edit]":
        situation = Situation(
            program=program,
            call=failed,
            error=trace.error or "",
            makers=makers,
            accepted=accepted,
            seen=see_numbers(trace, program.text),
        )
        return list_edits(situation)

    return Diagnosis(rules, made, write_edits)


def walk_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
    for where, text in explanation.callers[-MAX_CALLERS:]:
        yield f"{where}: {text}"
    module = f"    in {explanation.module}" if explanation.module else ""
    head = f"{explanation.where}: {explanation.expression}{module}".strip(": ")
    yield from [head] if head else []
    given = explanation.given[:MAX_OPERANDS]
    width = max((len(operand.name) for operand in given), default=0)
    for operand in given:
        geometry = operand.geometry
        dtype = str(geometry.dtype).removeprefix("torch.")
        yield f"    {operand.name:<{width}}  {format_shape(geometry.shape)} {dtype}"
    for rule in explanation.rules:
        yield f"  {rule}"
    if explanation.repairs:
        yield "repairs that ran"
    elif explanation.n_tried:
        yield f"none of {explanation.n_tried} edits that were tried ran"
    for repair in explanation.repairs:
        for at, before, after in repair.changes:
            yield f"    line {at}  {before.strip()}"
            yield f"    ->{' ' * len(str(at))}     {after.strip()}"
        yield f"            {repair.consequence}"


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

    def answer() -> tuple[tuple[str, ...], Accepted]:
        probe = Probe(function, failed)
        return find_rules(probe), list_accepted(probe, written)

    def run() -> tuple[tuple[str, ...], Accepted]:  # refused is what the CPU refuses
        recording = Recording("", options=options, is_probe=True)
        return recording.guard.run(answer)

    answered = ask_child(run, SECONDS, SECONDS)
    return None if answered is NO_ANSWER else answered
