"""Notes on columns that met rows: ``(n, 1)`` and ``(n,)`` silently make ``(n, n)``."""

from collections.abc import Iterator
from typing import Final

from meta_magic.trace.calls import OpCall
from meta_magic.trace.notes import Note
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import Signature
from meta_magic.trace.units import format_shape

__all__ = ["find_silent_broadcasts"]

PAIRWISE: Final = "add sub mul div pow eq ne gt lt ge le"
BINARY: Final = frozenset(
    {f"aten.{name}.Tensor" for name in PAIRWISE.split()}
    | {"aten.maximum.default", "aten.minimum.default", "aten.soft_margin_loss.default"}
)
EXPAND: Final = "aten.expand.default"
FUNCTIONAL: Final = "torch.nn.functional."
"""Where the losses are that expand what they are given."""

SQUARING: Final = frozenset({"one_hot", "outer", "ger"})
"""Functions of torch that are there to make a square of a column and a row."""


def find_silent_broadcasts(program: Program) -> Iterator[Note]:
    """Yield a note for each line where ``(n, 1)`` met ``(n,)`` and made ``(n, n)``."""
    suspects = {i for i, s in enumerate(program.signatures) if is_suspect(s)}
    if not suspects:
        return
    ops, lines = OpCalls(program), set()
    for index, number in enumerate(program.signature_numbers()):
        call = ops[index] if number in suspects else None
        if call is None or call.line in lines or call.phase == "backward":
            continue
        text = describe_meeting(ops, call)
        if text is not None:
            lines.add(call.line)
            yield Note(kind="broadcast", text=text, line=call.line)


def is_suspect(signature: Signature) -> bool:
    """Whether a column meets a row, or is expanded as a loss does it before."""
    shapes = [geometry.shape for geometry in signature.inputs]
    if signature.op == EXPAND:
        (n, *_) = made = signature.outputs[0].shape or (0,)
        return n > 1 and made == (n, n) and shapes in ([(n, 1)], [(n,)])
    if signature.op not in BINARY or len(shapes) < len("ab"):
        return False
    row, column = sorted(shapes, key=len)
    return len(row) == 1 and row[0] > 1 and column == (row[0], 1)


def describe_meeting(ops: OpCalls, call: OpCall) -> str | None:
    """Return in words what a call broadcast that nobody asked for; None if nothing."""
    name, function = call.op, call.function or ""
    given, n = list(call.inputs), call.inputs[0].shape[0]
    if call.op == EXPAND:  # by a loss, of both that it was given
        if not function.startswith(FUNCTIONAL):
            return None
        other = ops[min(call.index + 1, len(ops) - 1)]
        given += other.inputs
        if other.op != EXPAND or {t.shape for t in given} != {(n,), (n, 1)}:
            return None
        name = function
    elif function.rpartition(".")[2] in SQUARING:
        return None
    left, right = (format_shape(tensor.shape) for tensor in given)
    return f"{name} broadcast {left} with {right} to ({n}, {n}): a column met a row"
