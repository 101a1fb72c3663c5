"""The cause of a failed call: rules, lines, the origin of sizes, and edits to try.

``F.linear(x, weight)`` raises "mat1 and mat2 shapes cannot be multiplied". Three kinds
of failure have causes of their own, and are read from the records: a backward pass,
``load_state_dict``, and unpacking. Every other call is made again with other arguments.
Read :func:`diagnose` first.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from meta_magic.children import NO_ANSWER, ask_child, can_fork, measure_load
from meta_magic.errors import TrialError
from meta_magic.explain.backward_errors import (
    Backward,
    edit_refusals,
    is_backward,
    list_backward_edits,
)
from meta_magic.explain.edited_runs import EditableBlock, Workers
from meta_magic.explain.edits.accepted import Accepted, find_accepted
from meta_magic.explain.edits.argument_edits import edit_arguments, edit_modules
from meta_magic.explain.edits.number_edits import edit_numbers, edit_roots
from meta_magic.explain.edits.operand_edits import edit_intents, edit_operands
from meta_magic.explain.edits.program_text import Edit, SourceText, sort_edits
from meta_magic.explain.edits.situations import Situation, list_written
from meta_magic.explain.given_names import MAX_BACK, Made, Trail, find_maker
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.lineage.traced_runs import Seen
from meta_magic.explain.probing import Probe
from meta_magic.explain.refused_sizes import RefusedSizes, trace_refused
from meta_magic.explain.rules import find_rules, find_value_range
from meta_magic.session.operand_names import read_text
from meta_magic.session.recording import Recording
from meta_magic.torch_private.replacing import leave_dynamo_out
from meta_magic.trace.failed_call import FailedCall, Loading, Operand
from meta_magic.trace.options import Options
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.trials.trial import check_rerun

FAMILIES: Final = (
    edit_operands,
    edit_numbers,
    edit_roots,
    edit_arguments,
    edit_intents,
    edit_modules,
    edit_refusals,
)
"""What edits to try: functions that yield edits of a ``Situation``."""


Found: TypeAlias = tuple[tuple[str, ...], Accepted]
"""The rules that a call broke, and what it accepts instead."""

SECONDS: Final = 3.0
"""Processor time of the child that makes the call again."""

PATIENCE: Final = 6.0
"""How many seconds to wait for that child on a busy machine."""

LONGEST: Final = 5.0
"""A block that took longer, in seconds, is not run again."""


class Diagnosis(NamedTuple):
    """What is wrong with a call.

    Attributes:
        rules: What it asks for, in sentences.
        lines: Lines that may have the mistake.
        edits: Edits that may mend it, the likeliest first.
        operands: Other tensors that the rules are about than the call was given.
        lineages: Where the refused sizes come from.
        declined: Why the block was not run again; "" if it was.
        made: What made the operands, in sentences, where no lineage says it.
    """

    rules: tuple[str, ...]
    lines: Sequence[int] = ()
    edits: Sequence[Edit] = ()
    operands: tuple[Operand, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    declined: str = ""
    made: tuple[str, ...] = ()


def diagnose(trace: Trace, failed: FailedCall, workers: Workers) -> Diagnosis:
    """Return what is wrong with a call in a block, whose operands have names."""
    block = workers.block
    program = None if block is None else block.program
    declined = _find_reason(trace)
    broken = Backward(trace, failed).find() if is_backward(failed) else None
    trail = [made.line for made in _follow_back(failed, block, "")]
    if broken is not None:
        at = [] if broken.line is None else [broken.line]
        edits = [] if program is None else list_backward_edits(program, broken)
        found = Diagnosis((broken.rule,), at, edits, broken.operands, declined=declined)
    elif failed.loading is not None:
        owned = (failed.operands[own].tensor for _, own, _ in failed.loading.pairs)
        calls = [find_maker(trace, tensor) for tensor in owned]
        lines = [*dict.fromkeys(call.line for call in calls if call and call.line)]
        rules = (*_explain_loading(trace, failed, failed.loading),)
        edits = []
        if program is not None and not declined:
            seen = trace_refused(trace, failed, workers).seen
            edits = _edit_loading(program, trace, failed, seen, trail)
        found = Diagnosis(rules, lines, edits, declined=declined)
    else:
        found = _diagnose_call(trace, failed, workers, declined, trail)
    lines = [*found.lines, *trail[:MAX_TRAIL]]
    return found._replace(lines=lines, made=_describe_makers(failed, block, found))


def _describe_makers(
    failed: FailedCall, block: EditableBlock | None, found: Diagnosis
) -> tuple[str, ...]:
    """Return which lines made the operands that the rules are about, in sentences."""
    named = _follow_back(failed, block, " ".join(found.rules))
    shown = {frame.line for frame in failed.frames}
    shown |= {step.line for one in found.lineages for step in one.steps if step.line}
    texts = (
        f"{made.text} (line {made.line})"
        for made in named
        if made.text and made.line not in shown
    )
    return tuple(islice(texts, 1 if found.lineages else MAX_MADE))


def _edit_loading(
    program: SourceText,
    trace: Trace,
    failed: FailedCall,
    seen: Seen,
    trail: Sequence[int],
) -> list[Edit]:
    """Return edits with which a state dictionary may fit a module."""
    shapes = [one.geometry.shape for one in failed.operands]
    pairs = [
        pair
        for _, own, given in (failed.loading.pairs if failed.loading else ())
        for pair in zip(shapes[own], shapes[given], strict=False)
        if pair[0] != pair[1]
    ]
    situation = Situation(
        program=program,
        call=failed,
        error=trace.error or "",
        accepted=Accepted(numbers=tuple(dict.fromkeys(pairs))),
        seen=seen,
        trail=trail,
    )
    return sort_edits(edit_modules(situation), edit_numbers(situation))


def _diagnose_call(
    trace: Trace,
    failed: FailedCall,
    workers: Workers,
    declined: str,
    trail: Sequence[int],
) -> Diagnosis:
    """Return what is wrong with a call that can be made again with other arguments."""
    block = workers.block
    calls = [find_maker(trace, operand.tensor) for operand in failed.operands]
    made = [call.line for call in calls if call and call.line]
    positions = [None if call is None else call.position for call in calls]
    file = None if block is None else block.rerun.file
    makers = [at if at and at.file == file else None for at in positions]
    written: Sequence[int] = range(len(failed.operands))
    if block is not None:
        written = list_written(block.program, failed, makers)
    ranged = find_value_range(failed)
    own_rules = (*failed.notes, *_explain_unpacking(trace, failed))
    own_rules += _explain_meshes(trace.error or "")
    own_rules += () if ranged is None else (ranged.rule,)
    probe = None if own_rules else make_probe(trace, failed, written)
    known: Found = own_rules, Accepted()
    child = probe and workers.start(partial(probe, is_careful=False))
    sight = RefusedSizes({}, ()) if declined else trace_refused(trace, failed, workers)
    found = workers.read(child) if child else known
    if found is NO_ANSWER and probe:  # a call ended the process, or took long
        found = ask_child(partial(probe, is_careful=True), SECONDS, PATIENCE)
    rules, accepted = known if found is NO_ANSWER else found
    shown = () if accepted.is_sure else sight.refused  # the sizes are right then
    lineages = tuple(refused.lineage for refused in shown)
    steps = [step for lineage in lineages for step in lineage.steps]
    steps.sort(key=lambda step: not step.is_written)
    lines = [step.line for step in steps if step.line is not None]
    lines += [line for one in shown for line in one.passed]
    declined = declined or sight.declined
    edits: list[Edit] = []
    if block is not None and not declined:
        situation = Situation(
            program=block.program,
            call=failed,
            error=trace.error or "",
            makers=makers,
            accepted=accepted,
            seen=sight.seen,
            refused=sight.refused,
            trail=trail,
        )
        families = FAMILIES[:1] if accepted.is_sure else FAMILIES
        edits = sort_edits(*(family(situation) for family in families))
        if situation.error.startswith("AssertionError"):
            # An assertion says what is wanted: no repair changes it.
            asserts = block.program.find(ast.Assert)
            stated = {n for a in asserts for n in block.program.list_lines(a.lineno)}
            edits = [edit for edit in edits if stated.isdisjoint(edit.lines)]
    return Diagnosis(
        rules, [*lines, *made], edits, lineages=lineages, declined=declined
    )


def _follow_back(
    failed: FailedCall, block: EditableBlock | None, rules: str
) -> list[Made]:
    """Return the lines of a block that made the operands that rules name, or all."""
    if block is None:
        return []
    frames = [frame for frame in failed.frames if frame.file == block.rerun.file]
    marked = [one for one in failed.operands if one.name and one.name in rules]
    operands = marked or failed.operands
    names = [name for one in operands for name in (one.name, *one.aliases)]
    names += [failed.receiver] if failed.receiver and not marked else []
    return Trail(block.program, frames).follow(names)


def _find_reason(trace: Trace) -> str:
    """Return why a trace's block is not run again; "" if it may be."""
    try:
        check_rerun(trace)
    except TrialError as error:
        return str(error)
    is_long = trace.seconds > LONGEST * measure_load()
    return f"it took {trace.seconds:.0f} s to fail" if is_long else ""


def make_probe(
    trace: Trace, failed: FailedCall, written: Sequence[int]
) -> Callable[..., Found] | None:
    """Return a function that finds which rules a call broke, and what it accepts.

    It runs in a child; ``is_careful`` makes each call in a child of its own, as a call
    may end the process. None if the call cannot be made again.
    """
    function = failed.function
    if function is None or not (failed.is_whole and can_fork()):
        return None
    options = trace.rerun.options if trace.rerun else Options()

    def record(run: Callable[[], object]) -> object:  # refused is what the CPU refuses
        return Recording("", options=options, is_probe=True).guard.run(run)

    def run(*, is_careful: bool) -> Found:
        leave_dynamo_out()
        probe = Probe(function, failed, record, is_careful=is_careful)
        return find_rules(probe, trace.error or ""), find_accepted(probe, written)

    return run


MAX_MADE: Final = 2

MAX_TRAIL: Final = 10
"""How many lines that made the operands may have the mistake."""

MAX_NAMED: Final = 3

OF_MESHES: Final = re.compile(
    r"same mesh, but got DeviceMesh\((\(.*?\)).* and DeviceMesh\((\(.*?\))"
)
"""Part of the message about tensors that are distributed over two meshes."""

UNPACK: Final = "values to unpack"
"""Part of Python's message when the number of names is wrong."""


def _explain_loading(
    trace: Trace, failed: FailedCall, loading: Loading
) -> Iterator[str]:
    """Yield in sentences why a state dictionary does not fit a module."""
    owner, given = loading.owner, loading.given
    for name, own, other in loading.pairs[:MAX_NAMED]:
        made = find_maker(trace, failed.operands[own].tensor)
        line = f" (line {made.line})" if made is not None and made.line else ""
        wanted, got = (failed.operands[n].geometry.shape for n in (own, other))
        has = f"{owner} has {format_shape(wanted)}{line}"
        yield f"{name}: {given} has {format_shape(got)}, {has}"
    if len(loading.pairs) > MAX_NAMED:
        yield f"and the sizes of {len(loading.pairs) - MAX_NAMED} more differ"
    prefix = _find_prefix(loading.missing, loading.unexpected)
    if loading.holders:
        yield f"{given}[{loading.holders[0]!r}] has all names that {owner} has"
    elif prefix:
        yield f"all names in {given} begin with {prefix!r}, those of {owner} do not"
    elif prefix := _find_prefix(loading.unexpected, loading.missing):
        yield f"all names in {owner} begin with {prefix!r}, those in {given} do not"
    else:
        for lack, names in (
            (f"{given} lacks", loading.missing),
            (f"{owner} has no", loading.unexpected),
        ):
            n_more = len(names) - MAX_NAMED
            more = f" and {n_more} more" if n_more > 0 else ""
            if names:
                yield f"{lack} {', '.join(names[:MAX_NAMED])}{more}"


def _explain_unpacking(trace: Trace, failed: FailedCall) -> Iterator[str]:
    """Yield how many values a module returned, if they were unpacked to other names."""
    at = failed.frames[-1] if failed.frames else None
    if at is None or failed.function is not None or UNPACK not in (trace.error or ""):
        return
    for call in islice(reversed(trace.module_calls), MAX_BACK):
        position = call.position
        if position and (position.file, position.line) == (at.file, at.line):
            shapes: dict[str, list[str]] = {}
            for path, tensor in call.outputs:
                first = path.partition(".")[0]
                shapes.setdefault(first, []).append(format_shape(tensor.shape))
            listed = "; ".join(" and ".join(part) for part in shapes.values())
            yield f"{read_text(position)} returned {len(shapes)} values: {listed}"
            return


def _find_prefix(names: Sequence[str], longer: Sequence[str]) -> str:
    """Return the prefix that all longer names have before the others, or ""."""
    for one in longer[:1]:
        for name in names:
            prefix = one.removesuffix(name)
            if prefix != one and {prefix + other for other in names} == {*longer}:
                return prefix
    return ""


def _explain_meshes(error: str) -> tuple[str, ...]:
    """Return why tensors of two meshes are refused, and how gradients are clipped."""
    found = OF_MESHES.search(error)
    if found is None:
        return ()
    lie = f"some tensors are distributed over {found[1]}, others over {found[2]}"
    clip = "get_total_norm of each mesh's gradients, the norm of these norms"
    return (
        f"{lie}; a call takes tensors of one mesh",
        f"to clip gradients of both: {clip}, then clip_grads_with_norm_ for each mesh",
    )
