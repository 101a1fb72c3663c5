"""Repairs for notes: edits after which a block runs and the note is gone.

``(pred - y).abs()`` of a column and a row becomes ``(pred.squeeze(-1) - y).abs()``.
Each kind of note has a function that yields edits of its lines. One is shown only if
the block was recorded with it, the note is gone, and no other one came. Read
:func:`repair_notes` first.
"""

import ast
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import prod
from time import process_time
from typing import Final, TypeAlias

from meta_magic.children import ask_children
from meta_magic.explain.edited_runs import EditableBlock, find_block
from meta_magic.explain.edits.program_text import (
    Edit,
    Stretch,
    apply_edit,
    join_edits,
    read_number,
)
from meta_magic.explain.note_rewrites import (
    REWRITES,
    NotedLines,
    list_bound,
    rewrite,
)
from meta_magic.trace.notes import Note
from meta_magic.trace.trace import Trace
from meta_magic.trials.annotations import check_annotations
from meta_magic.trials.conditions import try_near_sizes
from meta_magic.trials.mixed_samples import check_samples
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

SECONDS: Final = 1.0
"""Processor time for the edits of one note."""

MAX_SECONDS: Final = 4.0
"""A block that took longer is not repaired."""

MAX_REPAIRED: Final = 4
"""So many notes are repaired."""

SEQUENTIAL: Final = {
    *("LSTM", "GRU", "RNN", "MultiheadAttention", "Transformer"),
    *("TransformerEncoderLayer", "TransformerDecoderLayer"),
}
NORMALIZING: Final = (
    *("softmax", "log_softmax", "Softmax", "LogSoftmax", "norm", "normalize"),
    "cosine_similarity",
)
SOFT: Final = frozenset({"softmax", "sigmoid", "Softmax", "Sigmoid"})


Edits: TypeAlias = Callable[[NotedLines], Iterator[Edit]]


def squeeze_operands(lines: NotedLines) -> Iterator[Edit]:
    """Drop a dimension of size one of an operand."""
    for node in lines.find(ast.BinOp, ast.Compare, ast.Call):
        given = (
            node.args[:2] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        )
        for operand in given:
            if isinstance(operand, ast.expr) and not isinstance(operand, ast.Constant):
                yield from lines.program.extend(operand, "{}.squeeze(-1)", 0)
                yield from lines.program.extend(operand, "{}.squeeze(1)", 1)


def change_softmax_dim(lines: NotedLines) -> Iterator[Edit]:
    """Normalize over another dimension."""
    for called in lines.find_calls(*NORMALIZING):
        given = [one.value for one in called.node.keywords if one.arg == "dim"]
        is_method = called.name.islower() and len(called.node.args) == 1
        at = called.node.args[0 if called.name[0].isupper() or is_method else 1 :]
        for node in (*given, *at[:1]):
            for dim in (-1, 1, -2):
                if read_number(node) != dim:
                    yield from lines.program.replace(node, str(dim), 0)


def move_dimensions(lines: NotedLines) -> Iterator[Edit]:
    """Move dimensions before or after a view, which then mixes none."""
    program = lines.program
    pairs = ((1, 2), (0, 1), (0, 2), (2, 3))
    moves = [f"transpose({i}, {j})" for i, j in pairs]
    for called in lines.find_calls("view", "reshape"):
        node, owner = called.node, called.owner
        for move in (*moves, "movedim(-1, 1)"):
            for edit in (
                () if owner is None else program.extend(owner, f"{{}}.{move}", 0)
            ):
                yield join_edits([edit, *program.rename(called, "reshape", 0)], 0)
        for (i, j), move in zip(pairs, moves, strict=True):
            if j < len(node.args):
                one, other = node.args[i], node.args[j]
                parts = [
                    *program.replace(one, program.read(other), 0),
                    *program.replace(other, program.read(one), 0),
                    *program.extend(node, f"{{}}.{move}", 0),
                ]
                yield join_edits(parts, 0)


def put_batch_first(lines: NotedLines) -> Iterator[Edit]:
    """Make a layer with ``batch_first``, or take the last step of its result."""
    for called in lines.program.calls:
        if called.name in SEQUENTIAL and "batch_first" not in lines.program.read(
            called.node
        ):
            yield from lines.program.add_argument(called.node, "batch_first=True", 0)
    for node in lines.find(ast.Subscript):
        if isinstance(node, ast.Subscript) and read_number(node.slice) == -1:
            yield from lines.program.replace(node.slice, ":, -1", 0)


def leave_out_soft(lines: NotedLines) -> Iterator[Edit]:
    """Leave a softmax or sigmoid out, or take the logarithm that the loss wants."""
    program = lines.program
    for called in lines.find_calls(*SOFT):
        node, owner = called.node, called.owner
        name = program.read(node.func)
        if "logarithms" in lines.note.text:
            logarithm = "log_softmax" if called.name.islower() else "LogSoftmax"
            yield from program.rename(called, logarithm, 0)
        elif called.name[0].isupper():
            yield from program.replace(node, name.replace(called.name, "Identity()"), 0)
        else:
            is_function = owner is None or program.read(owner) in program.imported
            kept = node.args[0] if is_function and node.args else owner
            if kept is not None:
                yield from program.replace(node, program.read(kept), 0)


def move(
    lines: NotedLines, what: str, *after: str, is_level: bool = False
) -> Iterator[Edit]:
    """Move a statement of its lines with a call after another one.

    Args:
        lines: The lines of the note.
        what: A part of the statement.
        after: The other one has one of these; () if it is further out and before it, or
            is a line of the note.
        is_level: Whether both must be in one body.
    """
    program = lines.program
    for moved in lines.find(ast.Expr, ast.Assign):
        text = program.read(moved)  # type: ignore[arg-type]  # a statement
        line, column = moved.lineno, moved.col_offset  # type: ignore[attr-defined]
        is_noted = what in text
        for other in program.find(ast.Expr, ast.Assign) if is_noted else ():
            read = program.read(other)
            is_out = other.col_offset < column and other.lineno < line
            is_meant = any(one in read for one in after) or (
                not after and (is_out or other.lineno in lines.note.lines)
            )
            if (
                is_meant
                and other.lineno != line
                and (not is_level or other.col_offset == column)
            ):
                end = other.end_lineno or 0, other.end_col_offset or 0
                put = Stretch(*end, end[1], f"; {text}")
                for gone in program.replace(moved, "", abs(end[0] - line) / 1000):  # type: ignore[arg-type]
                    yield replace(gone, stretches=(*gone.stretches, put))


def put_before(lines: NotedLines, text: str) -> Iterator[Edit]:
    """Put a call before a statement of its lines."""
    for node in lines.find(ast.Assign, ast.Expr, ast.Return):
        at = node.lineno, node.col_offset  # type: ignore[attr-defined]
        yield Edit(stretches=(Stretch(*at, at[1], f"{text}; "),), cost=0)


def put_in_mode(lines: NotedLines, mode: str) -> Iterator[Edit]:
    """Call ``train()`` or ``eval()`` of a module before the line that calls it."""
    names = [lines.program.read(called.node.func) for called in lines.find_calls()]
    for name in dict.fromkeys(names):
        if name.isidentifier() or name.removeprefix("self.").isidentifier():
            yield from put_before(lines, f"{name}.{mode}()")


def unscale(lines: NotedLines) -> Iterator[Edit]:
    """Divide gradients by the scale of the scaler before they are clipped."""
    bound = [*list_bound(lines.program)]
    scalers, optimizers = (
        [name for name, text in bound if part in text]
        for part in ("GradScaler(", "optim.")
    )
    for scaler, optimizer in product(scalers, optimizers):
        yield from put_before(lines, f"{scaler}.unscale_({optimizer})")


def give_parameters(lines: NotedLines) -> Iterator[Edit]:
    """Give an optimizer the parameters of one more module."""
    name = lines.note.text.partition("steps ")[2].partition(".")[0]
    for called in lines.program.calls:
        if "optim." in lines.program.read(called.node.func) and called.node.args:
            (given, *_), more = called.node.args, f"*{name}.parameters()]"
            text = f"[*{lines.program.read(given)}, {more}"
            if isinstance(given, ast.List):
                text = f"{lines.program.read(given)[:-1]}, {more}"
            yield from lines.program.replace(given, text, 0)


def add_argument(lines: NotedLines, text: str, *names: str) -> Iterator[Edit]:
    """Give calls an argument; () for all."""
    for called in lines.find_calls(*names):
        if text.partition("=")[0] not in lines.program.read(called.node):
            yield from lines.program.add_argument(called.node, text, 0)


def set_argument(
    lines: NotedLines, name: str, text: str, *dropped: str
) -> Iterator[Edit]:
    """Write another value, ``{}`` for that of now, and leave other arguments out."""
    program = lines.program
    for called in lines.find_calls():
        given = {one.arg: one for one in called.node.keywords}
        if name in given:
            value = text.replace("{}", program.read(given[name].value))
            kept = [
                f"{name}={value}" if one is given[name] else program.read(one)
                for one in called.node.keywords
                if one.arg not in dropped
            ]
            args = ", ".join([*map(program.read, called.node.args), *kept])
            func = program.read(called.node.func)
            yield from program.replace(called.node, f"{func}({args})", 0)


def call_optimizer(lines: NotedLines, method: str) -> Iterator[Edit]:
    """Call a method of an optimizer at the end of the line."""
    for name, text in list_bound(lines.program):
        if "optim" not in text.lower():
            continue
        for called in lines.find_calls("backward", "step"):
            call = f"{name}.{method}()"
            cost = float(call in lines.program.text)  # the one that is never called
            yield from lines.program.extend(called.node, f"{{}}; {call}", cost)


EDITS: Final[Mapping[str, Sequence[Edits]]] = {
    **dict.fromkeys(REWRITES, (rewrite,)),
    "blended classes": (
        lambda lines: set_argument(lines, "mode", '"nearest"', "align_corners"),
    ),
    "causal mask": (
        rewrite,
        *(
            partial(set_argument, name=name, text="~{}")
            for name in ("attn_mask", "mask", "src_mask")
        ),
    ),
    "other step": (rewrite, lambda lines: move(lines, "lr_sch", "optim.")),
    "loss size": (squeeze_operands,),
    "broadcast": (squeeze_operands,),
    "size one": (rewrite, change_softmax_dim),
    "softmax dimension": (change_softmax_dim,),
    "normalized dimension": (
        change_softmax_dim,
        lambda lines: add_argument(lines, "dim=-1", *NORMALIZING),
    ),
    "mixed": (rewrite, move_dimensions),
    "squeeze": (lambda lines: add_argument(lines, "-1", "squeeze"),),
    "last sample": (put_batch_first,),
    "mixed samples": (put_batch_first, rewrite),
    "one key": (put_batch_first,),
    "probabilities": (leave_out_soft,),
    "weighted mean": (partial(add_argument, text='reduction="none"'),),
    "crossed": (partial(add_argument, text="keepdim=True"),),
    "train mode": (
        lambda lines: put_in_mode(lines, "eval"),
        lambda lines: add_argument(lines, "training=self.training", "dropout"),
    ),
    "eval mode": (lambda lines: put_in_mode(lines, "train"),),
    "old gradients": (partial(call_optimizer, method="zero_grad"),),
    "no step": (partial(call_optimizer, method="step"),),
    "idle step": (
        lambda lines: move(lines, ".step(", ".backward("),
        lambda lines: move(lines, ".zero_grad(", ".step("),
    ),
    "discarded gradients": (lambda lines: move(lines, ".zero_grad(", ".step("),),
    "useless clip": (
        lambda lines: move(lines, "clip_grad_", ".backward("),
        unscale,
    ),
    "early schedule": (lambda lines: move(lines, ".step(", ".step(", is_level=True),),
    "fresh optimizer": (lambda lines: move(lines, "optim."),),
    "stale optimizer": (lambda lines: move(lines, "optim."), give_parameters),
}
"""The edits that may be meant, by the kind of note."""


def check_notes(trace: Trace, notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the notes of a trace with their repairs.

    A block that is checked also gets notes on sizes that fail and on annotations; one
    with a named batch, notes on calls that mix samples.
    """
    found = [*repair_notes(trace, notes)]
    if trace.is_checked:
        found += (*try_near_sizes(trace), *check_annotations(trace))
    if trace.rerun is not None and trace.rerun.options.batch:
        found += check_samples(trace, trace.rerun.options.batch)
    return (*found,)


def repair_notes(trace: Trace, notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return notes, those with a repair for which an edit was found."""
    todo = [note for note in notes if note.kind in EDITS][:MAX_REPAIRED]
    block = find_block(trace) if todo and trace.seconds < MAX_SECONDS else None
    if block is None or trace.error is not None:
        return (*notes,)
    try:
        program = block.program
    except SyntaxError:
        return (*notes,)
    before = Counter(note.kind for note in trace.wrong)
    asked = []
    for note in todo:
        lines = NotedLines(program, note)
        found = chain.from_iterable(edits(lines) for edits in EDITS[note.kind])
        own = [edit for edit in found if block.lines.issuperset(edit.lines)]
        own.sort(key=lambda edit: (note.line not in edit.lines, edit.cost))
        asked.append(partial(find_edit, block, own, note.kind, before))
    answers = ask_children(asked, 2 * SECONDS, 2 * SECONDS, 2)
    repaired = {}
    for note, edit in zip(todo, answers, strict=True):
        if isinstance(edit, Edit):
            text = apply_edit(block.typed, edit, block.first_line)
            now = dict(enumerate(text.split("\n"), block.first_line))
            changed = (f"line {at}: {now[at].strip()}" for at in edit.lines)
            repaired[note] = "; ".join(changed)
    return tuple(replace(note, repair=repaired.get(note, "")) for note in notes)


def find_edit(
    block: EditableBlock, edits: Sequence[Edit], kind: str, before: Mapping[str, int]
) -> Edit | None:
    """Return the first edit with which a note is gone, or None; runs in a child."""
    end, refused = process_time() + SECONDS, enter_sandbox()
    for edit in edits:
        parsed = block.parse(edit)
        if parsed is None:
            continue
        text, file = apply_edit(block.text, edit), block.rerun.file
        lines = text.splitlines(keepends=True)  # rules on loops read the source
        linecache.cache[file] = len(text), None, lines, file
        trace = record_block(block.rerun, *parsed, nullcontext)
        now = Counter(note.kind for note in trace.wrong)
        is_right = not (trace.error or refused or Counter(now) - Counter(before))
        if (
            is_right
            and now[kind] < before[kind]
            and (kind != "mixed" or is_plain(trace, edit))
        ):
            return edit
        if refused or process_time() > end:
            break
    return None


def is_plain(trace: Trace, edit: Edit) -> bool:
    """Whether views on the lines of an edit merge or cut whole dimensions."""
    pairs = [
        (call.inputs[0].shape, call.outputs[0].shape)
        for call in trace.ops
        if call.line in edit.lines and "view" in call.op
    ]
    return all(is_merged(a, b) or is_merged(b, a) for a, b in pairs)


def is_merged(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether each dimension after a view is a product of whole ones before it."""
    rest = [*before]
    for size in after:
        product = 1
        while rest and product < size:
            product *= rest.pop(0)
        if product != size:
            return False
    return prod(rest) == 1
