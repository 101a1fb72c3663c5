"""Explain a failed block together with the cells and files that it rests on.

``model(x)`` fails in the third cell, and the wrong number is in the first. The
slice of cells is recorded again as one block in a child, which explains it as any
block; then its lines are written as lines of the cells. Read :func:`explain` first.
``trace.why`` (:func:`why`) and ``trace.check`` (:func:`check_sizes`) rest on cells in
the same way.
"""

import linecache
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Final

from torch import Tensor

from meta_magic.children import NO_ANSWER, Child, Inbox, ask_child, can_fork
from meta_magic.errors import TrialError
from meta_magic.explain.explanations import (
    Explanation,
    Repair,
    explain_alone,
    explain_in_steps,
)
from meta_magic.explain.lineage.lineage_records import Lineage, LineageStep
from meta_magic.explain.lineage.why import why as why_alone
from meta_magic.torch_private.replacing import leave_dynamo_out
from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.conditions import Found, find_conditions
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.slices import (
    FILE,
    Slice,
    describe_alone,
    find_edited,
    join_slice,
    shorten_path,
)
from meta_magic.trials.trial import ask_trials, record_block

SECONDS: Final = 4.0
"""Processor time of the child that records the slice, or a size, and explains it."""

SECONDS_OF_LATER: Final = 8.0
"""The same for a text that has an edit."""

MAX_LATER: Final = 4
"""How many later errors of a block are explained."""

PATIENCE: Final = 12.0
"""How many seconds to wait for that child on a busy machine."""

LINE: Final = re.compile(r"(?<!, )\bline (\d+)\b")
"""``line 12``, of the slice's text. ``In[2], line 12`` is right already: no match."""


def explain(trace: Trace) -> Explanation | None:
    """Return why a trace's block failed; None if it did not."""
    *_, found = None, *walk_steps(trace)
    return found


def walk_steps(trace: Trace) -> Iterator[Explanation]:
    """Yield why a trace's block failed as it becomes known, the whole of it last."""
    if trace.error is None or trace.failed is None:
        return
    files = {at.file for at in trace.failed.frames}
    edited = ", ".join(shorten_path(file) for file in sorted(find_edited(files)))
    note = f"edited since it was imported, so other lines ran: {edited}"
    notes = [note] if edited else []
    is_whole = yield from _walk_slice(trace, notes)
    if not is_whole:
        taken = _join_notes(describe_alone(trace), *notes)
        for found in explain_in_steps(trace, trace.failed):
            yield replace(found, taken=taken)


def _join_notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


class PendingExplanation:
    """Finds in a child why a trace's block failed, while something else is done."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._child = Child(partial(explain, trace), SECONDS)

    def is_done(self, seconds: float) -> bool:
        """Wait for the child, and return whether it has ended."""
        return self._child.is_done(seconds)

    def finish(self) -> None:
        """Make what the child finds the trace's explanation; wait for it."""
        try:
            found = self._child.read(PATIENCE)
            if found is not NO_ANSWER:
                vars(self._trace)["explanation"] = found
        finally:
            self._child.end()


def _walk_slice(
    trace: Trace, notes: Sequence[str]
) -> Generator[Explanation, None, bool]:
    """Yield why a block failed, by what it rests on; return whether that is all of it.

    Nothing where it rests on no other cell, or where those do not fail in the same way
    when they run again.
    """
    with suppress(Exception, KeyboardInterrupt):  # never instead of the user's error
        joined = join_slice(trace) if can_fork() else None
        if joined is None:
            return False
        asked = partial(_answer_in_steps, joined, partial(_fails_alike, trace, joined))
        with Child(asked, SECONDS) as child:
            while (found := child.read(PATIENCE)) is not NO_ANSWER:
                if found is None:
                    return True
                found = translate(found, joined, trace)
                yield replace(found, taken=_join_notes(found.taken, *notes))
                child.send(None)
    return False


def _answer_in_steps(
    joined: Slice, is_wanted: Callable[[Trace], bool]
) -> Generator[Explanation | None, Inbox, None]:
    """Record a slice, and yield why it fails, then None; runs in a child."""
    again = _record_text(joined.rerun, joined.typed, is_wanted)
    if again is not None and again.failed is not None:
        for found in explain_in_steps(again, again.failed):
            inbox = yield found
            inbox.read()
        yield None


def why(trace: Trace, tensor: Tensor | TensorMetadata, dim: int) -> Lineage:
    """Return where a size comes from, back into the cells that made it."""
    joined = join_slice(trace)
    if joined is not None:
        with suppress(TrialError):  # the cells before do not make the same again
            found = why_alone(trace, tensor, dim, joined.rerun)
            found = _split_lineage(found, joined)
            caveats = filter(None, (found.caveat, joined.describe_limits()))
            return replace(found, caveat="; ".join(caveats))
    return why_alone(trace, tensor, dim)


def _explain_text(rerun: Rerun, typed: str) -> Explanation | None:
    """Record a text, and return why it fails; runs in a child."""
    again = _record_text(rerun, typed)
    failed = None if again is None else again.failed
    return explain_alone(again, failed) if again and failed else None


def _record_text(
    rerun: Rerun, typed: str, is_wanted: Callable[[Trace], bool] = lambda _: True
) -> Trace | None:
    """Record a text in a sandbox; None if it does not fail as it should."""
    leave_dynamo_out()
    refused, text = enter_sandbox(), str(rerun.text)
    lines = text.splitlines(keepends=True)
    linecache.cache[rerun.file] = len(text), None, lines, rerun.file
    block = parse_block(rerun)
    again = record_block(rerun, block, restore_variables(rerun, block, {}), nullcontext)
    if refused or again.failed is None or not is_wanted(again):
        return None
    source = CellSource(text=typed, file=rerun.file)
    return replace(again, rerun=rerun, cell=source)


def explain_later(trace: Trace, first: Explanation) -> Iterator[Explanation]:
    """Yield why later lines of a block fail, each with the first edits of all before.

    ``meta-magic check train.py`` names all errors of a run by it.
    """
    rerun, found = trace.rerun, first
    if rerun is None or rerun.text is None or not can_fork():
        return
    for _ in range(MAX_LATER):
        repair = found.repairs[0] if found.repairs else None
        if repair is None or not repair.then or repair.cell:
            return
        lines = str(rerun.text).split("\n")
        for line, _before, after in repair.changes:
            lines[line - 1] = after
        text = "\n".join(lines)
        rerun = replace(rerun, text=text)
        asked = partial(_explain_text, rerun, text)
        answered = ask_child(asked, SECONDS_OF_LATER, PATIENCE)
        if answered is NO_ANSWER or answered is None:
            return
        found = answered
        yield found


def _fails_alike(trace: Trace, joined: Slice, again: Trace) -> bool:
    """Whether a slice failed with the block's error, at its line, at its sizes."""
    failed = again.failed
    if trace.failed is None or trace.rerun is None or failed is None:
        return False
    errors = [str(one.error).partition(":")[0] for one in (trace, again)]
    found = [joined.find(at.line) for at in failed.frames if at.file == FILE]
    own = [line for part, line in found if not part.name]
    lines = [at.line for at in trace.failed.frames if at.file == trace.rerun.file]
    given = [
        [(one.geometry.shape, one.geometry.dtype) for one in call.operands]
        for call in (trace.failed, failed)
    ]
    is_same_call = errors[0] == errors[1] and given[0] == given[1]
    return is_same_call and own[-1:] == lines[-1:]


def make_say(joined: Slice) -> Callable[[str], str]:
    """Return a function that replaces lines of a slice's text by those of its cells."""
    return partial(LINE.sub, lambda match: joined.say(int(match[1])))


def translate(found: Explanation, joined: Slice, trace: Trace) -> Explanation:
    """Return an explanation of a slice with the lines of its cells."""
    say = make_say(joined)
    lines = [joined.find(line) for line in found.culprits]
    failed = trace.failed
    numbers = [one.tensor for one in failed.operands] if failed is not None else []
    return replace(
        found,
        error=str(trace.error),
        line=trace.error_line,
        where=say(found.where),
        callers=tuple((say(where), text) for where, text in found.callers),
        given=tuple(
            replace(
                operand,
                name=say(operand.name),
                aliases=tuple(map(say, operand.aliases)),
                tensor=number,
            )
            for operand, number in zip(
                found.given, chain(numbers, repeat(-1)), strict=False
            )
        ),
        rules=tuple(map(say, found.rules)),
        made=tuple(map(say, found.made)),
        repairs=tuple(
            _split_repair(one, joined, say)
            for one in found.repairs
            if _is_of_cells(one, joined)
        ),
        declined=say(found.declined),
        lineages=tuple(_split_lineage(one, joined) for one in found.lineages),
        taken=joined.describe_limits(),
        culprits=tuple(line for part, line in lines if not part.name),
        culprits_before=tuple((part.name, line) for part, line in lines if part.name),
    )


def _split_lineage(lineage: Lineage, joined: Slice) -> Lineage:
    """Return a lineage whose steps in other cells say the cell in their text."""
    say = make_say(joined)

    def split(step: LineageStep) -> LineageStep:
        text = say(step.text)
        if step.line is None:
            return replace(step, text=text)
        part, line = joined.find(step.line)
        if part.name:
            return replace(step, text=f"{text} ({part.name}, line {line})", line=None)
        return replace(step, text=text, line=line)

    return replace(
        lineage,
        name=say(lineage.name),
        caveat=say(lineage.caveat),
        steps=tuple(map(split, lineage.steps)),
    )


def _is_of_cells(repair: Repair, joined: Slice) -> bool:
    """Whether a repair changes only cells, or one file and perhaps cells."""
    parts = {joined.find(line)[0] for line, _, _ in repair.changes}
    return sum(bool(part.path) for part in parts) <= 1


def _split_repair(repair: Repair, joined: Slice, say: Callable[[str], str]) -> Repair:
    """Return a repair of the cell or file that it changes.

    Its source has the changed cell, and after it the cells that are to be run again. If
    it changes a file and cells, the source is the file, and the cells run again.
    """
    whole = repair.source.split("\n")
    n_lines = [part.typed.count("\n") + 1 for part in joined.parts]
    texts = [
        "\n".join(whole[part.first - 1 : part.first - 1 + n])
        for part, n in zip(joined.parts, n_lines, strict=True)
    ]
    found = [joined.find(line) for line, _, _ in repair.changes]
    part, line = found[0]
    at, n_files = joined.parts.index(part), len(joined.rerun.modules)
    is_file = at < n_files
    cells = join_texts(texts[n_files if is_file else at :])
    # The changed module is imported again, and those that import it.
    names = [one.name for one in joined.rerun.modules[at:]]
    reloads = [f"import importlib, {', '.join(names)}"]
    reloads += [f"importlib.reload({name})" for name in names]
    return replace(
        repair,
        line=line,
        consequence=say(repair.consequence),
        then=say(repair.then),
        changes=tuple(
            (own, before, after)
            for (_, own), (_, before, after) in zip(found, repair.changes, strict=True)
        ),
        cells=tuple(one.name for one, _ in found),
        source=texts[at] if is_file else cells,
        cell=part.name,
        path=part.path,
        again="\n".join([*reloads, "", cells]) if is_file else "",
    )


def join_texts(texts: list[str]) -> str:
    """Return cells as one, without the lines of their ``%%meta``."""
    bodies = []
    for text in texts:
        first, _, rest = text.partition("\n")
        bodies.append((rest if first.startswith("%%") else text).strip("\n"))
    return "\n\n".join(bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """For which sizes a block runs; ``print`` shows it.

    A size fails if the block raises, if a variable has another number of dimensions, or
    if a note on a broadcast appears.

    Attributes:
        text: A sentence for each name, with the smallest size that fails.
        condition: The condition as an expression of Python, such as ``side % 32 == 0``;
            ``True`` if no size failed.
        sizes: By name, whether each size that was recorded runs.
        line: The line that fails at the smallest failing size; None if none is known.
        why: Why the block fails there; None if it does not raise.
        caveat: What the condition rests on besides: variables that are not made again,
            sizes that could not be recorded.
    """

    text: str
    condition: str
    sizes: Mapping[str, Mapping[int, bool]]
    line: int | None = None
    why: Explanation | None = field(default=None, repr=False)
    caveat: str = ""

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.text, self.caveat)))


def check_sizes(trace: Trace, given: Mapping[str, Sequence[int] | None]) -> Condition:
    """Return for which sizes a block runs; see :meth:`Trace.check`."""
    found = find_conditions(trace, given)
    line, why = None, None
    failing = [(one, *one.failing) for one in found if one.failing is not None]
    for one, size, verdict in failing[:1]:
        line = verdict.line
        if one.joined is not None and line is not None:
            part, own = one.joined.find(line)
            line = None if part.name else own
        why = _explain_size(trace, one, size) if verdict.is_raised else None
    forms = [one.form.write(one.name) for one in found]
    parts = [form for form in forms if form != "True"]
    marked = [f"({part})" if " and " in part and parts[1:] else part for part in parts]
    return Condition(
        text="\n".join(one.describe() for one in found),
        condition=" and ".join(marked) or "True",
        sizes={one.name: one.list_sizes() for one in found},
        line=line,
        why=why,
        caveat=" ".join(filter(None, (one.describe_caveat() for one in found))),
    )


def _explain_size(trace: Trace, found: Found, size: int) -> Explanation | None:
    """Return why a block fails at a size of a name."""
    joined, runs = found.joined, trace
    if joined is not None:
        runs = replace(trace, rerun=joined.rerun)

    def ask(again: Trace, _: object) -> Explanation | None:
        return None if again.failed is None else explain_alone(again, again.failed)

    varied = [{found.spec: size}]
    (why,) = ask_trials(runs, ask, varied, seconds=SECONDS, asks_failed=True)
    if isinstance(why, TrialError) or why is None:
        return None
    if joined is None:
        return why
    line = None if why.line is None else joined.find(why.line)[1]
    return translate(why, joined, replace(trace, error=why.error, error_line=line))
