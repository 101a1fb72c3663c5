"""Why a recorded block failed: where, on what, and which rule it broke."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from meta_magic.explain.backward_edits import list_backward_edits
from meta_magic.explain.backward_errors import Backward, is_backward
from meta_magic.explain.candidates import Accepted, list_accepted, list_edits
from meta_magic.explain.given_names import (
    describe_module,
    find_maker,
    name_operands,
    read_text,
)
from meta_magic.explain.lineage_records import Lineage
from meta_magic.explain.probing import Probe
from meta_magic.explain.refused_sizes import trace_refused
from meta_magic.explain.repairs import Repair, try_edits
from meta_magic.explain.rules import find_rules
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

MAX_CHAINS: Final = 2

MAX_CHAIN: Final = 5
"""How many lines of a chain the text has."""


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
        write_edits: Given the cell, returns edits that may mend it.
        lineages: Where the sizes come from that are refused.
    """

    rules: tuple[str, ...]
    lines: Sequence[int]
    write_edits: "Callable[[str], list[Edit]]"
    lineages: tuple[Lineage, ...] = ()


def add_findings(trace: Trace, failed: FailedCall, found: Explanation) -> Explanation:
    """Return an explanation with operands, rules, and repairs that were tried."""
    diagnosis = diagnose(trace, failed, found.line)
    text = trace.rerun.text if trace.rerun else None
    edits = [] if text is None else diagnosis.write_edits(text)
    repairs, n_tried = try_edits(trace, edits)
    lines = (*(repair.line for repair in repairs), *diagnosis.lines)
    return replace(
        found,
        given=failed.operands,
        rules=diagnosis.rules,
        repairs=repairs,
        n_tried=n_tried,
        lineages=diagnosis.lineages,
        culprits=tuple(dict.fromkeys(lines)),
    )


def diagnose(trace: Trace, failed: FailedCall, line: int | None) -> Diagnosis:
    """Return what is wrong with a call that was made at a line."""
    finding = Backward(trace, failed).find() if is_backward(failed) else None
    if finding is not None:
        at = [] if finding.line is None else [finding.line]
        write = partial(list_backward_edits, finding=finding)
        return Diagnosis((finding.rule,), at, write)
    calls = (find_maker(trace, operand.tensor) for operand in failed.operands)
    made = [call.line for call in calls if call and call.line]
    answer = ask_probe(trace, failed)
    if answer is None:
        return Diagnosis((), made, lambda _: [])
    rules, accepted = answer
    sight = trace_refused(trace, failed)
    lineages = tuple(refused.lineage for refused in sight.refused)

    def write_edits(text: str) -> "list[Edit]":
        return list_edits(text, sight.seen, accepted, [line or 0, *made])

    return Diagnosis(rules, [*list_lines(lineages), *made], write_edits, lineages)


def list_lines(lineages: Sequence[Lineage]) -> Iterator[int]:
    """Yield the lines of chains, those first where numbers are written."""
    steps = [step for lineage in lineages for step in lineage.steps]
    for step in sorted(steps, key=lambda step: not step.is_written):
        if step.line is not None:
            yield step.line


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
    for lineage in explanation.lineages[:MAX_CHAINS]:
        yield from (f"  {line}" for line in shorten(lineage))
    if explanation.repairs:
        yield "repairs that ran"
    elif explanation.n_tried:
        yield f"none of {explanation.n_tried} edits that were tried ran"
    for repair in explanation.repairs:
        yield f"    line {repair.line}  {repair.before.strip()}"
        yield f"    ->{' ' * len(str(repair.line))}     {repair.after.strip()}"
        yield f"            {repair.consequence}"


def shorten(lineage: Lineage) -> Iterator[str]:
    """Yield the first lines of a chain."""
    first, *rest = lineage.lines
    yield f"why {first}"
    yield from (f"  {line}" for line in rest[: MAX_CHAIN - 1])
    if len(rest) >= MAX_CHAIN:
        yield "    ..."


def ask_probe(
    trace: Trace, failed: FailedCall
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
        return find_rules(probe), list_accepted(probe)

    def run() -> tuple[tuple[str, ...], Accepted]:  # refused is what the CPU refuses
        recording = Recording("", options=options, is_probe=True)
        return recording.guard.run(answer)

    answered = ask_child(run, SECONDS, SECONDS)
    return None if answered is NO_ANSWER else answered
