"""Why a recorded block failed: where, on what, and which rule it broke."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from meta_magic.explain.diagnosis import diagnose
from meta_magic.explain.edited_runs import find_block
from meta_magic.explain.edits.program_text import Program
from meta_magic.explain.explanation_text import Explanation
from meta_magic.explain.given_names import describe_module, name_operands, read_text
from meta_magic.explain.repairs import Tried, try_edits
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace

__all__ = ["Explanation", "explain"]


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
    tried = Tried()
    if block is not None and not diagnosis.declined:
        edits = diagnosis.write_edits(Program(block.text, block.lines))
        tried = try_edits(trace, block, edits)
    declined = diagnosis.declined if failed.function or diagnosis.rules else ""
    lines = (*(repair.line for repair in tried.repairs), *diagnosis.lines)
    return replace(
        found,
        given=(*failed.operands, *diagnosis.operands),
        rules=diagnosis.rules,
        repairs=tried.repairs,
        n_tried=tried.n_tried,
        declined=declined or ("" if tried.repairs else tried.reason),
        lineages=diagnosis.lineages,
        culprits=tuple(dict.fromkeys(lines)),
    )
