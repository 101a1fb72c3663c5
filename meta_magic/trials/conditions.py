"""For which sizes a block runs: it is recorded again at a few, in a child.

``trace.check("side")`` answers "side must be a multiple of 32". What is compared
between recordings is an :class:`Outcome`; ``size_search`` chooses the sizes. Read
:func:`find_conditions` first.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch

from meta_magic.children import start_clock
from meta_magic.errors import TrialError
from meta_magic.trace.notes import Note
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import as_size, label, parse_block
from meta_magic.trials.fit import Recordings
from meta_magic.trials.size_search import (
    Form,
    Outcome,
    Over,
    SizeSearch,
    SizeVerdict,
    check_form,
    find_form,
    judge,
)
from meta_magic.trials.slices import Slice
from meta_magic.trials.trial import Question, ask_trials, check_rerun

T = TypeVar("T")

AT_ONCE: Final = 2
"""How many recordings are made at the same time."""

SECONDS: Final = 5.0
"""How long the recordings for one name may take."""

MAX_LISTED: Final = 8
"""So many values of a name are all recorded."""

MAX_REASON: Final = 160

TRIED_SECONDS: Final = 0.5
"""Seconds for the sizes that ``--check`` tries by itself."""


def read_outcome(again: Trace, variables: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a recording; runs in a child."""
    notes = replace(again, is_checked=False).notes
    nodes = (node for root in again.modules for node in root.walk())
    return Outcome(
        again.error,
        again.error_line,
        {
            name: value.dim()
            for name, value in variables.items()
            if isinstance(value, torch.Tensor) and not name.startswith("_")
        },
        [(note.line, note.text) for note in notes if note.kind == "broadcast"],
        again.seconds,
        [tensor.shape for node in nodes for tensor in node.tensors],
    )


class Turns(Generic[T]):
    """Records a block at sizes, a few at a time, until the time is over.

    Args:
        question: As for ``ask_trials``.
        seconds: The processor time of all recordings.
        asks_failed: As for ``ask_trials``.
    """

    def __init__(
        self,
        trace: Trace,
        question: Question[T],
        seconds: float,
        *,
        asks_failed: bool = False,
    ) -> None:
        self._trace, self._question = trace, question
        self._asks_failed = asks_failed
        self.find_rest = start_clock(seconds, 2 * seconds)
        self._of_one = 0.02

    def ask(self, sizes: Sequence[Mapping[str, int]]) -> Iterator[T | TrialError]:
        """Yield the answer at each size, or why it is not known, until it is late."""
        todo = [*sizes]
        while todo and (rest := self.find_rest()) > self._of_one:
            n = AT_ONCE if rest > AT_ONCE * self._of_one else 1
            some, todo = todo[:n], todo[n:]
            answers = ask_trials(
                self._trace,
                self._question,
                some,
                (),
                rest / len(some),
                at_once=AT_ONCE,
                asks_failed=self._asks_failed,
            )
            now = self.find_rest()
            self._of_one = (rest - now) / len(some)
            for one in answers:
                if isinstance(one, TrialError) and now < self._of_one:
                    return  # its time was over
                yield one


class Found(NamedTuple):
    """What was found for one name.

    Attributes:
        spec: The name, or ``NAME=VALUE``.
        joined: The cells and files that were recorded with the block; None for none.
    """

    spec: str
    search: SizeSearch
    form: Form
    joined: Slice | None

    @property
    def name(self) -> str:
        """The name."""
        return label(self.spec)

    def list_sizes(self) -> dict[int, bool]:
        """Return whether each size that was recorded runs."""
        seen = self.search.seen
        return {n: not seen[n].reason for n in sorted(seen)}

    def describe_caveat(self) -> str:
        """Return what the condition rests on besides, or ""."""
        unknown = self.search.unknown
        listed = ", ".join(f"{self.name}={n}: {why}" for n, why in unknown.items())
        limits = "" if self.joined is None else self.joined.describe_limits(self.name)
        late = (
            "" if not self.search.is_late else "the time was over: no other was tried"
        )
        return "; ".join(
            filter(None, (limits, listed and f"not known at {listed}", late))
        )

    @property
    def failing(self) -> tuple[int, SizeVerdict] | None:
        """The smallest failing size above the block's own; else the largest below."""
        sizes = self.search.failing
        above = [n for n in sizes if n > self.search.size] or sizes[::-1]
        return (above[0], self.search.seen[above[0]]) if above else None

    def say(self, line: int) -> str:
        """Return a line as messages say it."""
        return f"line {line}" if self.joined is None else self.joined.say(line)

    def describe(self) -> str:
        """Return the condition in a sentence."""
        sizes, failing = self.search.running, self.failing
        if failing is None:
            tried = f"from {sizes[0]:,} to {sizes[-1]:,}"
            if not sizes[1:]:
                return f"{self.name}={sizes[0]} runs, and no other was recorded"
            return f"{self.name} may be any size: {len(sizes)} {tried} run"
        size, verdict = failing
        where = "" if verdict.line is None else f", {self.say(verdict.line)}"
        reason = verdict.reason
        reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}..."
        head = self.form.describe(self.name) or f"{self.name} fails at some sizes"
        return f"{head}; with {self.name}={size}{where}: {reason}"


def find_conditions(
    trace: Trace, given: Mapping[str, Sequence[int] | None], seconds: float = SECONDS
) -> list[Found]:
    """Return for which ``given`` sizes (None: any) a block runs, each name alone."""
    for name, values in given.items():
        if values is not None and not all(map(as_size, values)):
            raise TrialError(f"{name}={values!r}: sizes are positive integers")
    recordings = Recordings(trace)
    return [
        _find_one(trace, recordings, name, values, seconds)
        for name, values in given.items()
    ]


def _find_one(
    trace: Trace,
    recordings: Recordings,
    name: str,
    values: Sequence[int] | None,
    seconds: float,
) -> Found:
    """Return for which values of a name a block runs."""
    runs = recordings.find_trace(name)
    block = parse_block(check_rerun(runs))
    check_unlooped(block, name)
    size = recordings.read_size(name)
    turns = Turns(runs, read_outcome, seconds, asks_failed=True)
    few = [] if values is None else list(values)
    n_listed = len(few) if len(few) <= MAX_LISTED else 0
    search = SizeSearch(lambda few: turns.ask([{name: n} for n in few]), size)
    with suppress(Over):
        search.try_all(few[:n_listed])
    nodes = (one.value for one in ast.walk(block) if isinstance(one, ast.Constant))
    form = find_form(search, {one for one in nodes if type(one) is int and one > 1})
    with suppress(Over):  # a few of many
        search.try_all(
            [] if n_listed else [*few[:2], *few[-2:], *few[:: len(few) // 2 or 1]]
        )
    form = check_form(search, form)
    joined = None if runs is trace else recordings.joined
    return Found(name, search, form, joined)


def try_near_sizes(trace: Trace) -> tuple[Note, ...]:
    """Note each size with which a block fails when it is 1, or one larger.

    This finds odd sides of images, the last batch of a loader, and a sequence one step
    longer than its table of positions. A size that is also in the shape of a parameter
    belongs to the architecture, and is not noted.
    """
    if trace.error is not None:
        return ()
    turns = Turns(trace, read_outcome, TRIED_SECONDS, asks_failed=True)
    try:
        block = parse_block(check_rerun(trace))
        sizes = Recordings(trace).list_sizes()
        for name in [*sizes]:
            with suppress(TrialError):
                check_unlooped(block, name)
                continue
            del sizes[name]
        todo = [(name, size + 1) for name, size in sizes.items()]
        todo += [(name, 1) for name in sizes]
        answers = turns.ask([{}, *({name: n} for name, n in todo)])
        usual = next(answers, None)
        if not isinstance(usual, Outcome):
            return ()
        found = dict(zip(todo, answers, strict=False))
    except TrialError:
        return ()
    return tuple(_note_failing(usual, found))


def _note_failing(
    usual: Outcome, found: Mapping[tuple[str, int], Outcome | TrialError]
) -> Iterator[Note]:
    """Yield a note for the first size of each name that fails."""
    noted = set[str]()
    for (name, size), one in found.items():
        if name in noted or isinstance(one, TrialError):
            continue
        verdict = judge(one, usual)
        shapes = zip(usual.parameters, one.parameters, strict=False)
        if verdict.reason and all(a == b for a, b in shapes):
            noted.add(name)
            yield Note(
                kind="size",
                text=f"fails with {name}={size}: {verdict.reason}",
                line=verdict.line,
                severity="asked for",
                why=f'recorded again; trace.check("{name}") gives the condition',
            )


def check_unlooped(block: ast.Module, name: str) -> None:
    """Refuse a name that a loop binds."""
    kinds = (ast.For, ast.comprehension)
    for node in ast.walk(block):
        if isinstance(node, kinds) and name in {
            one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)
        }:
            line = node.target.lineno
            raise TrialError(f"{name} is bound by the loop of line {line}: no one size")
