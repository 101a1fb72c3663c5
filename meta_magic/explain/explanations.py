"""Why a recorded block failed: where, on what, and which rule it broke."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from meta_magic.explain.diagnosis import diagnose
from meta_magic.explain.edited_runs import find_block
from meta_magic.explain.explanation_text import format_explanation
from meta_magic.explain.given_names import describe_module, name_operands, read_text
from meta_magic.explain.lineage_records import Lineage
from meta_magic.explain.program_text import Program
from meta_magic.explain.repairs import Repair, try_edits
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace

__all__ = ["Explanation", "explain"]


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


def add_findings(trace: Trace, failed: FailedCall, found: Explanation) -> Explanation:
    """Return an explanation with operands, rules, and repairs that were tried."""
    block = find_block(trace)
    diagnosis = diagnose(trace, failed, block)
    repairs: tuple[Repair, ...] = ()
    n_tried = 0
    if block is not None and not diagnosis.declined:
        edits = diagnosis.write_edits(Program(block.text, block.lines))
        repairs, n_tried = try_edits(trace, block, edits)
    lines = (*(repair.line for repair in repairs), *diagnosis.lines)
    return replace(
        found,
        given=(*failed.operands, *diagnosis.operands),
        rules=diagnosis.rules,
        repairs=repairs,
        n_tried=n_tried,
        declined=diagnosis.declined if failed.function or diagnosis.rules else "",
        lineages=diagnosis.lineages,
        culprits=tuple(dict.fromkeys(lines)),
    )
