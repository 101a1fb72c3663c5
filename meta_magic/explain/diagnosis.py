"""What is wrong with a failed call: rules, lines, chains of sizes, likely edits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from meta_magic.errors import TrialError
from meta_magic.explain.backward_errors import (
    Backward,
    edit_refusals,
    is_backward,
    list_backward_edits,
)
from meta_magic.explain.edits.accepted import Accepted, list_accepted
from meta_magic.explain.edits.argument_edits import edit_arguments, edit_modules
from meta_magic.explain.edits.number_edits import edit_numbers, edit_roots
from meta_magic.explain.edits.operand_edits import edit_intents, edit_operands
from meta_magic.explain.edits.program_text import Edit, Program, sort_edits
from meta_magic.explain.edits.situations import Situation, list_written
from meta_magic.explain.given_names import find_maker, tell_returned
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.probing import Probe
from meta_magic.explain.refused_sizes import Sight, trace_refused
from meta_magic.explain.repairs import Block
from meta_magic.explain.rules import find_rules
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    Child,
    ask_child,
    can_fork,
)
from meta_magic.session.recording import Recording
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.calls import OpCall
from meta_magic.trace.failed_call import FailedCall, Loading, Operand
from meta_magic.trace.options import Options
from meta_magic.trace.signature import SourcePosition
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


def list_edits(situation: Situation) -> list[Edit]:
    """Return edits that may mend a failed call, the likeliest first."""
    return sort_edits(edit for family in FAMILIES for edit in family(situation))


MAX_TOLD: Final = 3


def tell_loading(trace: Trace, failed: FailedCall, loading: Loading) -> Iterator[str]:
    """Yield what does not fit, in sentences."""
    owner, given = loading.owner, loading.given
    for name, own, other in loading.pairs[:MAX_TOLD]:
        made = find_maker(trace, failed.operands[own].tensor)
        line = f" (line {made.line})" if made is not None and made.line else ""
        wanted, got = (failed.operands[n].geometry.shape for n in (own, other))
        has = f"{owner} has {format_shape(wanted)}{line}"
        yield f"{name}: {given} has {format_shape(got)}, {has}"
    yield from tell_more(loading.pairs, "sizes differ")
    prefix = find_prefix(loading.missing, loading.unexpected)
    if loading.holders:
        yield f"{given}[{loading.holders[0]!r}] has all names that {owner} has"
    elif prefix:
        yield f"all names in {given} begin with {prefix!r}, which {owner} has not"
    elif prefix := find_prefix(loading.unexpected, loading.missing):
        yield f"all names in {owner} begin with {prefix!r}, which {given} has not"
    else:
        yield from tell_names(f"{given} lacks", loading.missing)
        yield from tell_names(f"{owner} has no", loading.unexpected)


def tell_names(words: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the first of some names, and how many more there are."""
    if names:
        n_more = len(names) - MAX_TOLD
        more = f" and {n_more} more" if n_more > 0 else ""
        yield f"{words} {', '.join(names[:MAX_TOLD])}{more}"


def tell_more(rest: Sequence[object], words: str) -> Iterator[str]:
    """Yield how many more there are than were told."""
    if len(rest) > MAX_TOLD:
        yield f"and of {len(rest) - MAX_TOLD} more the {words}"


def find_prefix(names: Sequence[str], longer: Sequence[str]) -> str:
    """Return what has to be taken from all longer names to have the others, or ""."""
    for one in longer[:1]:
        for name in names:
            prefix = one.removesuffix(name)
            if prefix != one and {prefix + other for other in names} == {*longer}:
                return prefix
    return ""


def list_made_lines(trace: Trace, failed: FailedCall, loading: Loading) -> list[int]:
    """Return the lines that made the module's tensors of other sizes."""
    made = (
        find_maker(trace, failed.operands[own].tensor) for _, own, _ in loading.pairs
    )
    return list(dict.fromkeys(call.line for call in made if call and call.line))


Found: TypeAlias = tuple[tuple[str, ...], Accepted]
"""The rules that a call broke, and what it accepts."""

SECONDS: Final = 3.0
"""What probing may take of a processor."""

PATIENCE: Final = 6.0
"""How many seconds it is waited for, on a busy machine."""

LONGEST: Final = 5.0
"""Seconds of a block that is not run again."""


class Diagnosis(NamedTuple):
    """What is wrong with a call.

    Attributes:
        rules: What it asks for, in sentences.
        lines: Where the mistake may be.
        write_edits: Given the program, returns edits that may mend it.
        operands: Tensors that it is about, and that the call was not given.
        lineages: Where the sizes come from that are refused.
        declined: Why the block was not run again, in words; "" if it was.
    """

    rules: tuple[str, ...]
    lines: Sequence[int] = ()
    write_edits: Callable[[Program], list[Edit]] = lambda _: []
    operands: tuple[Operand, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    declined: str = ""


def diagnose(trace: Trace, failed: FailedCall, block: Block | None) -> Diagnosis:
    """Return what is wrong with a call that was made in a block.

    Args:
        trace: The trace that it ended.
        failed: The call, its operands with names.
        block: What of it may be edited; None if nothing may.
    """
    declined = find_reason(trace)
    bound = list_bound_lines(failed, block)
    finding = Backward(trace, failed).find() if is_backward(failed) else None
    if finding is not None:
        at = [] if finding.line is None else [finding.line]
        write = partial(list_backward_edits, finding=finding)
        lines = [*at, *bound]
        return Diagnosis(
            (finding.rule,), lines, write, finding.operands, declined=declined
        )
    loading = failed.loading
    if loading is not None:
        lines = [*list_made_lines(trace, failed, loading), *bound]
        return Diagnosis((*tell_loading(trace, failed, loading),), lines)
    return diagnose_call(trace, failed, block, declined)


def diagnose_call(
    trace: Trace, failed: FailedCall, block: Block | None, declined: str
) -> Diagnosis:
    """Return what is wrong with a call that tries of others may tell."""
    calls = [find_maker(trace, operand.tensor) for operand in failed.operands]
    made = [call.line for call in calls if call and call.line]
    makers = [find_place(call, block) for call in calls]
    written: Sequence[int] = range(len(failed.operands))
    if block is not None:
        written = list_written(Program(block.text, block.lines), failed, makers)
    told = (*failed.remarks, *tell_returned(trace, failed))
    probe = None if told else make_probe(trace, failed, written)
    with ask_meanwhile(probe) as wait:
        sight = Sight({}, ()) if declined else trace_refused(trace, failed)
        rules, accepted = wait() or (told, Accepted())
    lineages = tuple(refused.lineage for refused in sight.refused)

    def write_edits(program: Program) -> list[Edit]:
        situation = Situation(
            program=program,
            call=failed,
            error=trace.error or "",
            makers=makers,
            accepted=accepted,
            seen=sight.seen,
            refused=sight.refused,
        )
        return list_edits(situation)

    return Diagnosis(
        rules,
        [*list_lines(lineages), *made],
        write_edits,
        lineages=lineages,
        declined=declined or sight.declined,
    )


def list_bound_lines(failed: FailedCall, block: Block | None) -> list[int]:
    """Return the lines of a block that bind what is read where a call was made."""
    if block is None:
        return []
    file = block.rerun.file
    at = [frame.line for frame in failed.frames if frame.file == file][-1:]
    return [*Program(block.text, block.lines).find_bindings(at)]


def find_place(call: OpCall | None, block: Block | None) -> SourcePosition | None:
    """Return where a call was made, if that is in the block's file."""
    at = None if call is None else call.position
    file = None if block is None else block.rerun.file
    return at if at is not None and at.file == file else None


def find_reason(trace: Trace) -> str:
    """Return why a trace's block is not run again, in words; "" if it may be."""
    try:
        check_rerun(trace)
    except TrialError as error:
        return str(error)
    is_long = trace.seconds > LONGEST
    return f"it took {trace.seconds:.0f} s to fail" if is_long else ""


def list_lines(lineages: Sequence[Lineage]) -> Iterator[int]:
    """Yield the lines of chains, those first where numbers are written."""
    steps = [step for lineage in lineages for step in lineage.steps]
    for step in sorted(steps, key=lambda step: not step.is_written):
        if step.line is not None:
            yield step.line


def make_probe(
    trace: Trace, failed: FailedCall, written: Sequence[int]
) -> Callable[..., Found] | None:
    """Return what finds the rules that a call broke and what it accepts.

    It is told whether to try each call in a child: it may end the process. None where
    that cannot be found out.
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
        return find_rules(probe), list_accepted(probe, written)

    return run


@contextmanager
def ask_meanwhile(
    probe: Callable[..., Found] | None,
) -> Iterator[Callable[[], Found | None]]:
    """Have a child run what :func:`make_probe` returned; yield what waits for it."""
    if probe is None:
        yield lambda: None
        return
    start = monotonic()
    with Child(partial(probe, is_careful=False), SECONDS) as child:

        def wait() -> Found | None:
            answered = child.read(PATIENCE)
            if answered is NO_ANSWER and monotonic() < start + SECONDS:  # it crashed
                careful = partial(probe, is_careful=True)
                answered = ask_child(careful, SECONDS, PATIENCE)
            return None if answered is NO_ANSWER else answered

        yield wait
