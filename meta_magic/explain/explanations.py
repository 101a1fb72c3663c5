"""Why a recorded block failed: where, on what, and which rule it broke."""

import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from meta_magic.explain.candidates import Accepted, list_accepted, list_edits
from meta_magic.explain.probing import Probe
from meta_magic.explain.repairs import Repair, try_edits
from meta_magic.explain.rules import find_rules
from meta_magic.explain.seen_numbers import see_numbers
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_child,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import UNNAMED, FailedCall, Operand
from meta_magic.trace.options import Options
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["Explanation", "explain"]

SECONDS: Final = 5.0
"""What probing may take."""

MAX_BACK: Final = 1000
"""How many operators back an operand without a name is looked for."""

MAX_OPERANDS: Final = 8

MAX_CALLERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a block failed; ``print`` shows it.

    Attributes:
        error: Type and text of the error.
        line: Line of the cell, or else of the user's file; None if no line of his is
            on the way.
        expression: What stands there.
        callers: The lines of the user's own code on the way there, outermost first, and
            what stands at each.
        module: The module that was called: class and name; "" outside of modules.
        given: The tensors that the failed call was given.
        rules: What it asks for, in sentences.
        repairs: Edits of the cell with which it ran to its end, the smallest first.
        n_tried: How many edits were tried.
    """

    error: str
    line: int | None
    expression: str
    callers: tuple[tuple[int, str], ...]
    module: str
    given: tuple[Operand, ...]
    rules: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    n_tried: int = 0

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
        expression=read_text(position),
        callers=tuple((at.line, read_text(at)) for at in frames[:-1]),
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
    frames = list(failed.frames)
    files = [frame.file for frame in frames]
    return (
        frames[files.index(trace.cell.file) :] if trace.cell.file in files else frames
    )


def add_findings(trace: Trace, failed: FailedCall, found: Explanation) -> Explanation:
    """Return an explanation with operands, rules, and repairs that were tried."""
    found = replace(found, given=failed.operands)
    answer = ask_probe(trace, failed)
    if answer is None:
        return found
    rules, accepted = answer
    rerun = trace.rerun
    text = rerun.text if rerun else None
    if rerun is None or text is None or found.line is None:
        return replace(found, rules=rules)
    made = (find_maker(trace, operand.tensor) for operand in failed.operands)
    lines = [found.line, *(call.line for call in made if call and call.line)]
    edits = list_edits(text, see_numbers(trace, rerun, text), accepted, lines)
    repairs = try_edits(trace, edits)
    return replace(found, rules=rules, repairs=repairs, n_tried=len(edits))


def walk_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
    for line, text in explanation.callers[-MAX_CALLERS:]:
        yield f"line {line}: {text}"
    where = f"line {explanation.line}: " if explanation.line else ""
    module = f"    in {explanation.module}" if explanation.module else ""
    head = f"{where}{explanation.expression}{module}".strip(": ")
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
        yield f"    line {repair.line}  {repair.before.strip()}"
        yield f"    ->{' ' * len(str(repair.line))}     {repair.after.strip()}"
        yield f"            {repair.consequence}"


def describe_module(trace: Trace) -> str:
    """Return class and name of the module in which the failed call was made."""
    number = find_failing(trace)
    if number is None:
        return ""
    within = trace.module_calls[number]
    root = None if within.root is None else trace.modules[within.root]
    name = ".".join(part for part in (root.name if root else "", within.module) if part)
    return f"{within.class_name} `{name}`" if name else within.class_name


def find_failing(trace: Trace) -> int | None:
    """Return which call of a module the failed call was made in, if any."""
    call = trace.ops[-1] if len(trace.ops) else None
    return call.module_call if call is not None and call.raised else None


def name_operands(trace: Trace, failed: FailedCall) -> FailedCall:
    """Return a call whose operands have names: by what made it, one that had none."""
    at = failed.frames[-1] if failed.frames else None
    operands = (
        operand if operand.name else replace(operand, name=find_name(at, made))
        for operand in failed.operands
        for made in [find_maker(trace, operand.tensor)]
    )
    return replace(failed, operands=tuple(operands))


def find_name(at: SourcePosition | None, made: OpCall | None) -> str:
    """Return what a tensor is called by the call that made it.

    Args:
        at: Where the failed call was made.
        made: What returned the tensor, if that is known.
    """
    if made is None or made.position is None:
        return UNNAMED
    if made.position == at:  # within the same expression, by a module in it
        return f"what {made.module} returned" if made.module else UNNAMED
    name = read_text(made.position) or UNNAMED
    is_near = at is not None and at.line == made.position.line
    return name if is_near else f"{name} (line {made.position.line})"


def find_maker(trace: Trace, tensor: int) -> OpCall | None:
    """Return the call that returned a tensor, if that was not long ago."""
    for call in islice(reversed(trace.ops), MAX_BACK):
        if any(output.tensor_id == tensor for output in call.outputs):
            return call
    return None


def read_text(position: SourcePosition | None) -> str:
    """Return the source at a position; of several lines the first."""
    if position is None:
        return ""
    line = linecache.getline(position.file, position.line).rstrip("\n").encode()
    is_whole = position.line == position.end_line
    end = position.end_column if is_whole else None
    more = "" if is_whole else " ..."
    return line[position.column : end].decode(errors="replace").strip() + more


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
