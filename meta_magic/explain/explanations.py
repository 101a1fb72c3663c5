"""Why a recorded block failed: the record, its text, and the edits that ran.

After an error in a ``%%meta`` cell, ``print(trace.explanation)`` shows the failing
line, the shapes of its operands, the rule that they broke, where their sizes come from,
and edits with which the cell ran. ``edited_runs`` records the block with each edit that
comes further; :func:`try_edits` chooses, and records what may rest on an earlier run
once more, alone. Read :func:`explain_alone` first; ``across_cells`` calls it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from meta_magic.children import NO_ANSWER, measure_load
from meta_magic.explain.diagnosis import diagnose
from meta_magic.explain.edited_runs import (
    MAX_WORSE,
    EditableBlock,
    Ended,
    Ending,
    Screened,
    Workers,
    find_block,
    is_whole,
    read_ending,
    run_alone,
)
from meta_magic.explain.edits.argument_edits import NO_FORWARD, NO_INIT
from meta_magic.explain.edits.program_text import Edit, apply_edit
from meta_magic.explain.given_names import describe_module, name_operands, read_assigned
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.session.operand_names import read_text
from meta_magic.trace.failed_call import FailedCall, Operand
from meta_magic.trace.notes import name_cell
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.trials.slices import shorten_path

AT_ONCE: Final = 2
"""Children that try many edits at the same time."""

MAX_REPAIRS: Final = 3

MAX_ALONE: Final = 6
"""How many edits that seem to help are run once more."""

MAX_OF_CHILDREN: Final = 1.5
"""Processor seconds that all trials may take together, in the children."""

MAX_SECONDS: Final = 4.0
"""Seconds on the clock, for a block that sleeps; longer on a busy machine."""

GROWTH: Final = 0.3
"""The highest cost of a changed number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit with which a block ran to its end, or to a later error.

    Attributes:
        line: The first line that is changed.
        changes: (line, before, after) of each line that is changed.
        source: The whole cell with the edit, then the cells that are to be run again
            after it; of a file, or of a ``with record()`` in it, the whole file.
        consequence: The change of parameters, and the shape of the last tensor.
        cell: The earlier cell or the file that is changed, as ``In[2]`` or
            ``models/net.py``; "" for the block itself.
        cells: The same for each change; empty if all are of the block itself.
        path: The path of the file; "" for a cell.
        again: Code that runs what rests on a changed file again; "" for a cell.
        then: Which later line fails, and how; "" if the block ran to its end.
    """

    line: int
    changes: tuple[tuple[int, str, str], ...]
    source: str
    consequence: str
    cell: str = ""
    cells: tuple[str, ...] = ()
    path: str = ""
    again: str = ""
    then: str = ""

    @property
    def before(self) -> str:
        """The lines that are changed."""
        return "\n".join(before for _, before, _ in self.changes)

    @property
    def after(self) -> str:
        """The lines after the edit."""
        return "\n".join(after for _, _, after in self.changes)

    @property
    def own_changes(self) -> tuple[tuple[int, str, str], ...]:
        """The changes of the cell or the file, without those of other cells."""
        cells = self.cells or (self.cell,) * len(self.changes)
        pairs = zip(self.changes, cells, strict=True)
        return tuple(change for change, cell in pairs if cell == self.cell)

    @property
    def diff(self) -> str:
        """The lines before and after, as in a unified diff; other cells are named."""
        cells = self.cells or (self.cell,) * len(self.changes)
        parts = []
        for cell, (line, before, after) in zip(cells, self.changes, strict=True):
            head = "" if cell == self.cell else f"{cell or 'the failed cell'}\n"
            parts.append(f"{head}@@ -{line} +{line} @@\n-{before}\n+{after}")
        return "\n".join(parts)


class Ran(NamedTuple):
    """An edit that was tried.

    Attributes:
        is_sure: Whether it is the edit that helped, and no earlier run in the process.
    """

    edit: Edit
    outcome: Any
    is_sure: bool = True


def try_edits(
    trace: Trace, workers: Workers, block: EditableBlock, edits: Sequence[Edit]
) -> tuple[tuple[Repair, ...], int, str]:
    """Return the edits with which a block runs to its end, or else to a later error.

    The likeliest come first; then edits with the same outcome as an earlier one; last
    those that leave a part of the computation out. Return also how many were tried, and
    what stopped another one, such as the sandbox, or "".
    """
    before = read_ending(trace).n_parameters
    allowed = [edit for edit in edits if block.lines.issuperset(edit.lines)]
    tried = [*_screen(workers, block, allowed)]
    passed = [one for one in tried if isinstance(one.outcome, Ending)]
    ran = [one for one in passed if not one.outcome.then]
    ran = ran or [one for one in passed if not one.edit.is_lossy]
    ran.sort(key=lambda one: one.edit.cost + _weigh(one.outcome, before))
    firsts = {one.outcome: one for one in reversed(ran)}
    ran.sort(key=lambda one: firsts[one.outcome] is not one)
    likely = ran[:MAX_ALONE]
    is_later = any(one.outcome.then for one in likely)
    alone = [*islice(_confirm(block, likely, is_later=is_later), MAX_REPAIRS)]
    alone.sort(key=lambda one: one.edit.is_lossy)
    repairs = tuple(_write_repair(block, one, before) for one in alone)
    reasons = (one.outcome for one in tried if isinstance(one.outcome, str))
    return repairs, len(tried), next(filter(None, reasons), "")


def _weigh(outcome: Ending, before: int) -> float:
    """Return the cost of a changed number of parameters."""
    more = abs(outcome.n_parameters - before)
    return GROWTH * min(1.0, more / before) if before else 0.0


def _screen(
    workers: Workers, block: EditableBlock, edits: Sequence[Edit]
) -> Iterator[Ran]:
    """Yield the edits that are tried.

    Code may keep state between two runs in a process; what is not sure is run once more
    by :func:`_confirm`. It stops after some time, or enough different outcomes.
    """
    end, spent = monotonic() + MAX_SECONDS * measure_load(), 0.0
    found, rest = list[Ended](), [*edits]
    while (
        rest
        and len({*found}) < MAX_REPAIRS
        and len(found) < MAX_ALONE
        and monotonic() < end
        and spent < MAX_OF_CHILDREN
    ):
        parts = [part for n in range(AT_ONCE) if (part := rest[n::AT_ONCE])]
        most, done = inf, set[Edit]()
        for part, answer in zip(parts, workers.run(parts), strict=True):
            if answer is NO_ANSWER:  # an edit ended the process, or never ended
                ended = run_alone(block, part[:AT_ONCE])
                answer = Screened(dict(zip(part, ended, strict=False)))  # noqa: PLW2901
            spent += answer.seconds
            for edit, one in answer.ended.items():
                yield Ran(edit, one, answer.is_sure)
                if is_whole(one):
                    found.append(one)
                    most = min(most, edit.cost + MAX_WORSE)
            done |= answer.ended.keys()
        rest = [edit for edit in rest if edit not in done and edit.cost <= most]


def _confirm(
    block: EditableBlock, ran: Sequence[Ran], *, is_later: bool
) -> Iterator[Ran]:
    """Yield the edits with which a block runs in a child of its own.

    If ``is_later``, a later line may fail; else the block must run to its end.
    """
    for first in range(0, len(ran), MAX_REPAIRS):
        some = ran[first : first + MAX_REPAIRS]
        edits = [one.edit for one in some if is_later or not one.is_sure]
        ended = run_alone(block, edits, is_probe=not is_later)
        again = dict(zip(edits, ended, strict=True))
        for one in some:
            outcome = again.get(one.edit, one.outcome)
            if isinstance(outcome, Ending) and (is_later or not outcome.then):
                yield Ran(one.edit, outcome)


def _write_repair(block: EditableBlock, ran: Ran, before: int) -> Repair:
    first, outcome = block.first_line, ran.outcome
    source = apply_edit(block.typed, ran.edit, first)
    old, new = block.typed.split("\n"), source.split("\n")
    consequences = []
    if outcome.n_parameters != before:
        consequences.append(
            f"{outcome.n_parameters:,} parameters instead of {before:,}"
        )
    if outcome.then:
        consequences.append(outcome.then)
    elif outcome.shape is not None:
        consequences.append(f"ends with {format_shape(outcome.shape)}")
    lines = ran.edit.lines
    return Repair(
        line=lines[0],
        changes=tuple((at, old[at - first], new[at - first]) for at in lines),
        source=source,
        consequence=", ".join(consequences),
        then=outcome.then,
    )


MAX_LINES: Final = 25
MAX_OPERANDS: Final = 8
MAX_CALLERS: Final = 4
MAX_CHAINS: Final = 2

MAX_CHAIN: Final = 5
"""Lines of one chain. The last line of a longer one is a number in the user's code."""

LEAST: Final = (
    ("chains", 6),
    ("operands", 5),
    ("callers", 2),
    ("rules", 3),
    ("chains", 3),
    ("repairs", 7),
)
"""The parts of a text that is too long, in the order in which they are shortened, and
how many lines each keeps."""


OF_PYTHON: Final = frozenset(
    (
        *("NameError", "UnboundLocalError", "KeyError", "ImportError", "OSError"),
        *("ModuleNotFoundError", "FileNotFoundError", "PermissionError", "EOFError"),
        *("RecursionError", "MemoryError", "StopIteration", "ZeroDivisionError"),
        *("UnicodeDecodeError", "TimeoutError", "NotImplementedError"),
    )
)
"""Errors of Python that no other size, dtype or shape mends."""

OF_PARTS: Final = re.compile(r"'(tuple|list|float|int)' object")
"""Part of an error of what holds tensors, or of a number that ``item()`` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a block failed; ``print`` shows it.

    Attributes:
        error: Type and text of the error.
        line: The failing line of the cell, or else of the user's file; None if no line
            of the user's code was running.
        where: The innermost call site in the user's code: ``line 12``, or in another
            cell or file ``In[2], line 12``; "" for none.
        expression: The code there, after the names that it is assigned to.
        callers: The call sites that led there, outermost first, each with its code.
        module: The module that was called: class and name; "" outside of modules.
        given: The tensors that the failed call was given.
        rules: What the call asks for, in sentences.
        repairs: Edits with which the block ran to its end, or else passed the failed
            call; the likeliest first.
        n_tried: How many edits were tried.
        declined: Why no edits were tried, or what stopped one that was, such as the
            sandbox; "" for nothing.
        lineages: Where the refused sizes come from.
        made: What made the operands, in sentences, where no lineage says it.
        culprits: Lines of the cell that may have the mistake: first lines of repairs,
            then lines of numbers that refused sizes come from, then lines that made
            operands.
        taken: Which variables of earlier cells are used as they are, because the code
            that made them is not run again, as a sentence; "" for none.
        culprits_before: The same in earlier cells and imported files: the name of the
            cell or file, and the line in it.
        is_of_torch: Whether a call of torch raised, and not other code of the line.
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
    made: tuple[str, ...] = ()
    taken: str = ""
    culprits: tuple[int, ...] = ()
    culprits_before: tuple[tuple[str, int], ...] = ()
    is_of_torch: bool = True

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to say besides the error, as of a ``NameError``."""
        return not (self.is_of_torch or self.rules or self.repairs)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors, in the user's code and in its callers."""
        names = (name for one in self.given for name in (one.name, *one.aliases))
        return tuple(dict.fromkeys(names))

    @property
    def text(self) -> str:
        """The explanation without the error, in at most ``MAX_LINES`` lines."""
        parts = {name: [*lines] for name, lines in _walk_parts(self)}
        for name, least in LEAST:
            n_over = sum(map(len, parts.values())) - MAX_LINES
            lines = parts[name]
            if n_over > 0 and len(lines) > least:
                n_kept = max(least, len(lines) - n_over - 1)
                n_kept = n_kept if name != "repairs" else least
                parts[name] = [*lines[:n_kept], "    ..."]
        return "\n".join(line for lines in parts.values() for line in lines)

    def __str__(self) -> str:
        return f"{self.error}\n{self.text}"


def _walk_parts(explanation: Explanation) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the parts of an explanation by name, with the lines of each."""
    callers = explanation.callers[-MAX_CALLERS:]
    yield "callers", (f"{where}: {text}" for where, text in callers)
    module = f"    in {explanation.module}" if explanation.module else ""
    head = f"{explanation.where}: {explanation.expression}{module}".strip(": ")
    yield "head", iter([head] if head else [])
    yield "operands", _walk_operands(explanation.given)
    yield "rules", (f"  {rule}" for rule in explanation.rules)
    yield "chains", _walk_chains(explanation.lineages)
    yield "made", (f"  {sentence}" for sentence in explanation.made)
    yield "taken", iter([f"  {explanation.taken}"] if explanation.taken else [])
    yield "repairs", walk_repairs(explanation)


def _walk_operands(given: Sequence[Operand]) -> Iterator[str]:
    shown = given[:MAX_OPERANDS]
    width = max((len(operand.name) for operand in shown), default=0)
    for operand in shown:
        geometry = operand.geometry
        dtype = str(geometry.dtype).removeprefix("torch.")
        yield f"    {operand.name:<{width}}  {format_shape(geometry.shape)} {dtype}"
    if len(given) > MAX_OPERANDS:
        yield f"    and {len(given) - MAX_OPERANDS} more"


def _walk_chains(lineages: Sequence[Lineage]) -> Iterator[str]:
    for lineage in lineages[:MAX_CHAINS]:
        first, *rest = lineage.lines
        yield f"  why {first}"
        if len(rest) < MAX_CHAIN:
            yield from (f"    {line}" for line in rest)
            continue
        yield from (f"    {line}" for line in rest[: MAX_CHAIN - 2])
        yield "      ..."
        steps = [step for _, step, _ in lineage.walk()][1:]
        left = [*zip(rest, steps, strict=False)][MAX_CHAIN - 2 :]
        written = [line for line, step in left if step.is_written]
        yield from (f"      {line.strip()}" for line in written[:1])


def walk_repairs(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of the repairs, or the reason why there are none."""
    if explanation.repairs:
        is_whole = not explanation.repairs[0].then
        yield "repairs that ran" if is_whole else "edits with which this line ran"
    elif (
        explanation.n_tried and explanation.rules
    ):  # else nothing is known of the error
        reason = f": {explanation.declined}" if explanation.declined else ""
        yield f"none of {explanation.n_tried} edits that were tried ran{reason}"
    elif explanation.declined and not explanation.n_tried:
        yield f"no repairs were tried: {explanation.declined}"
    for repair in explanation.repairs:
        for n, (line, before, after) in enumerate(repair.changes):
            cell = repair.cells[n] if repair.cells else ""
            where = f"{cell}, line {line}" if cell else f"line {line}"
            yield f"    {where}  {before.strip()}"
            yield f"    {'->':<{len(where)}}  {after.strip()}"
        if repair.consequence:
            yield f"            {repair.consequence}"


def explain_alone(trace: Trace, failed: FailedCall) -> Explanation:
    """Return why a block failed, without the cells before it."""
    *_, found = explain_in_steps(trace, failed)
    return found


def explain_in_steps(trace: Trace, failed: FailedCall) -> Iterator[Explanation]:
    """Yield why a block failed: without repairs, as these take longer; then with them.

    What has no repairs is yielded once.
    """
    files = [frame.file for frame in failed.frames]  # from the cell on, if it is there
    first = files.index(trace.cell.file) if trace.cell.file in files else 0
    frames = failed.frames[first:]
    position = frames[-1] if frames else None
    found = Explanation(
        error=str(trace.error),
        line=trace.error_line or (position.line if position else None),
        where=_locate(position, frames[0]) if position else "",
        expression=read_assigned(position),
        callers=tuple((_locate(at, frames[0]), read_text(at)) for at in frames[:-1]),
        module=describe_module(trace),
        given=(),
        is_of_torch=failed.is_of_torch,
    )
    if _is_of_python(found.error):
        yield found
        return
    try:
        yield from _add_cause(trace, name_operands(trace, failed), found)
    except Exception as error:  # noqa: BLE001  never instead of the user's own
        rule = f"This could not be explained: {type(error).__name__}: {error}"
        yield replace(found, rules=(rule.partition("\n")[0],))
    except KeyboardInterrupt:
        yield replace(found, rules=("This was interrupted while it was explained.",))


def _is_of_python(error: str) -> bool:
    """Whether an error has nothing to do with tensors: it is not diagnosed."""
    kind, _, text = error.partition(":")
    if NO_FORWARD in text or NO_INIT in text:
        return False
    if kind == "AttributeError":  # what returned several values may need an index
        return not OF_PARTS.search(text)
    return kind in OF_PYTHON


def _locate(at: SourcePosition, first: SourcePosition) -> str:
    """Return a line, with its cell or file if that is not the one of the first call."""
    if at.file == first.file:
        return f"line {at.line}"
    return f"{name_cell(at.file) or shorten_path(at.file)}, line {at.line}"


def _add_cause(
    trace: Trace, failed: FailedCall, found: Explanation
) -> Iterator[Explanation]:
    """Yield an explanation with operands and rules; then with repairs that ran."""
    block = find_block(trace)
    with Workers(block) as workers:
        diagnosis = diagnose(trace, failed, workers)
        declined = diagnosis.declined if failed.function or diagnosis.rules else ""
        named = {one.name for one in failed.operands}
        others = {one.name: one for one in diagnosis.operands}
        found = replace(
            found,
            given=(
                *failed.operands,
                *(one for name, one in others.items() if name not in named),
            ),
            rules=diagnosis.rules,
            declined=declined,
            lineages=diagnosis.lineages,
            made=diagnosis.made,
            culprits=tuple(dict.fromkeys(diagnosis.lines)),
        )
        yield found
        if block is None or diagnosis.declined or not diagnosis.edits:
            return
        repairs, n, reason = try_edits(trace, workers, block, diagnosis.edits)
    lines = (*(repair.line for repair in repairs), *diagnosis.lines)
    yield replace(
        found,
        repairs=repairs,
        n_tried=n,
        declined=declined or ("" if repairs else reason),
        culprits=tuple(dict.fromkeys(lines)),
    )
