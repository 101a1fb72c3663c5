"""A failed call in a program, for tests of what edits are thought of."""

import ast

import torch

from meta_magic.explain.edits.accepted import Accepted
from meta_magic.explain.edits.program_text import SourceText, apply_edit, span_of
from meta_magic.explain.edits.situations import Situation
from meta_magic.explain.given_names import Trail
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.signature import Geometry, SourcePosition


def make_situation(
    text, line=1, *, operands=(), error="RuntimeError", accepted=None, seen=None
):
    """Return a situation.

    Args:
        text: The program.
        line: Which of its lines failed.
        operands: (name, shape, dtype) of what the call was given.
        error: Type and text of the error.
        accepted: What the call accepts.
        seen: By expressions of the program the integers that were their values.
    """
    program = SourceText(text)
    spots = program.find(ast.expr)
    spans = {
        span_of(node): frozenset(seen[program.read(node)])
        for node in spots
        if seen and program.read(node) in seen
    }
    call = make_call(line, operands)
    names = [one.name for one in call.operands]
    return Situation(
        program=program,
        call=call,
        error=error,
        accepted=accepted or Accepted(),
        seen=spans,
        trail=[made.line for made in Trail(program, call.frames).follow(names)],
    )


def make_call(line, operands):
    return FailedCall(
        function=None,
        args=(),
        kwargs={},
        operands=tuple(make_operand(*operand) for operand in operands),
        is_whole=True,
        frames=(
            SourcePosition(
                file="<cell>",
                line=line,
                end_line=line,
                column=0,
                end_column=None,
                function="<module>",
            ),
        ),
    )


def make_operand(name, shape, dtype=torch.float32):
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    geometry = Geometry(
        shape=tuple(shape),
        stride=tensor.stride(),
        storage_offset=0,
        dtype=dtype,
        device=tensor.device,
        layout=tensor.layout,
    )
    return Operand(name=name, geometry=geometry, tensor=0)


def write_edits(situation, edits):
    """Return the lines that edits make of a program, the likeliest edit first."""
    text = situation.program.text
    written = []
    for edit in sorted(edits, key=lambda edit: edit.cost):
        lines = apply_edit(text, edit).split("\n")
        written.append("\n".join(lines[line - 1] for line in edit.lines).strip())
    return written
