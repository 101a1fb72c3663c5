"""Sliders of the report: a block recorded again with other numbers, in a child.

``%%meta -p d_model=256..4096:256`` gives the report a slider. Each move asks for the
payload of the block with that number, and for what differs from the pinned design. A
number that fails is answered with the rule that it breaks. Read :meth:`Designs.answer`
first.
"""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias

from meta_magic.designs.design import Design, read_design
from meta_magic.designs.differences import compare
from meta_magic.errors import MetaMagicError, TrialError
from meta_magic.explain.across_cells import translate
from meta_magic.explain.edits.program_text import Edit, Stretch, apply_edit
from meta_magic.explain.explanations import Explanation, explain_alone
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import find_numbers
from meta_magic.trials.fields import find_constants
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.trial import ask_trials
from meta_magic.view.payload import pack

Sizes: TypeAlias = Mapping[str, int]

SECONDS: Final = 10.0
"""Processor time that one recording may take."""

N_TRIED: Final = 2
"""Children for one number: one that was forked while a cell began is not asked."""

SEARCH: Final = 8.0
"""Seconds of the search for a number that runs."""

AT_ONCE: Final = 2
"""Recordings that are made at the same time."""

N_KEPT: Final = 200
"""Designs that are kept, to be compared with."""


def offer_sliders(trace: Trace) -> list[dict[str, Any]]:
    """Return the sliders of a trace: ``name``, ``values``, ``value`` and ``reason``.

    ``reason`` says why a slider cannot be moved; "" if it can.
    """
    asked = () if trace.rerun is None else trace.rerun.options.sliders
    offered = []
    for slider in asked:
        value, reason = 0, ""
        try:
            value = Recordings(trace).read_size(slider.name)
        except MetaMagicError as error:
            reason = str(error)
        values = sorted({*slider.values, *([value] if value else [])})
        offered.append(
            {"name": slider.name, "values": values, "value": value, "reason": reason}
        )
    return offered


Found: TypeAlias = tuple[bytes, Design] | Explanation | str
"""Payload and design of a block, or why it failed."""


class Designs:
    """Answers the questions of sliders about one trace, which it does not keep."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, int]], Found] = {}

    def answer(self, trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the browser.

        Args:
            trace: The recording of the cell.
            asked: ``sizes``, the number of each name; and ``pinned``, those of the
                design to compare with; or ``near``, a name of which the nearest number
                that runs is wanted, and its ``values``; or ``is_written``, if the
                cell's text with these numbers is wanted.

        Returns:
            ``buffers``, the payload, and what ``Difference.describe`` gives; or
            ``sizes`` that run; or ``source``; or ``error``, a message, and ``is_rule``,
            if the block fails with the numbers.
        """
        sizes: Sizes = asked["sizes"]
        try:
            if "near" in asked:
                return self._find_near(trace, sizes, asked["near"], asked["values"])
            if "is_written" in asked:
                return {"source": write_numbers(trace, sizes)}
            found = self._record(trace, sizes)
            if isinstance(found, tuple):
                design = self._find_design(trace, asked["pinned"])
                difference = compare(design, found[1])
                return {**difference.describe(), "buffers": [found[0]]}
            return {"error": say_rule(trace, sizes, found), "is_rule": True}
        except MetaMagicError as error:
            return {"error": str(error)}

    def _record(self, trace: Trace, sizes: Sizes) -> Found:
        """Return what the block is with other numbers, each recorded once."""
        key = frozenset(sizes.items())
        if key not in self._known:
            self._known[key] = record_again(trace, sizes)
            if len(self._known) > N_KEPT:
                del self._known[next(iter(self._known))]
        return self._known[key]

    def _find_design(self, trace: Trace, sizes: Sizes) -> Design:
        """Return the design with some numbers; the cell's own needs no recording."""
        runs = Recordings(trace)
        if all(runs.read_size(name) == size for name, size in sizes.items()):
            return at_any_depth(read_design)(trace, sizes)
        found = self._record(trace, sizes)
        if not isinstance(found, tuple):
            raise TrialError("the pinned design fails now")
        return found[1]

    def _find_near(
        self, trace: Trace, sizes: Sizes, name: str, values: Sequence[int]
    ) -> dict[str, Any]:
        """Return the numbers that run, with that of a name as near as can be.

        Raises:
            TrialError: None was found.
        """
        runs, end = Recordings(trace).find_trace(*sizes), monotonic() + SEARCH
        wanted = sizes[name]
        near = sorted({*values} - {wanted}, key=lambda one: (abs(one - wanted), one))
        RARE_COLLECTION.wait()
        tried = 0
        for at in range(0, len(near), AT_ONCE):
            if monotonic() > end:
                break
            some = [{**sizes, name: value} for value in near[at : at + AT_ONCE]]
            answers = ask_trials(runs, lambda *_: True, some, (), SECONDS)
            tried += len(some)
            for one, answer in zip(some, answers, strict=True):
                if answer is True:
                    return {"sizes": one}
        raise TrialError(f"of the {tried} nearest numbers of {name} none runs")


def record_again(trace: Trace, sizes: Sizes) -> Found:
    """Record a block with other numbers in a child.

    Raises:
        TrialError: It cannot be recorded again.
    """
    runs = Recordings(trace).find_trace(*sizes)
    question = partial(read_again, sizes)
    for _ in range(N_TRIED):
        RARE_COLLECTION.wait()
        (found,) = ask_trials(runs, question, [sizes], (), SECONDS, asks_failed=True)
        if isinstance(found, TrialError):
            raise found
        if found is not None:
            return found
    raise TrialError("another cell is being recorded")


def read_again(
    sizes: Sizes, again: Trace, _variables: Mapping[str, object]
) -> Found | None:
    """Return payload and design of a block recorded again; or why it failed.

    Runs in a child; None if that was forked while something was recorded.
    """
    if RARE_COLLECTION.n_entered:
        return None
    if again.error is None:
        return pack(again), at_any_depth(read_design)(again, sizes)
    if again.failed is None:
        where = f"line {again.error_line}: " if again.error_line else ""
        return where + again.error
    return explain_alone(again, again.failed)


def say_rule(trace: Trace, sizes: Sizes, found: Explanation | str) -> str:
    """Return in one line why a block failed: its line, and the rule that it broke."""
    if isinstance(found, str):
        return found.partition("\n")[0]
    recordings = Recordings(trace)
    joined = recordings.joined
    if joined is not None and recordings.find_trace(*sizes) is not trace:
        line = None if found.line is None else joined.find(found.line)[1]
        found = translate(
            found, joined, replace(trace, error=found.error, error_line=line)
        )
    rule = found.rules[0] if found.rules else found.error.partition("\n")[0]
    return f"{found.where}: {rule}" if found.where else rule


def write_numbers(trace: Trace, sizes: Sizes) -> str:
    """Return the text of the cell with other numbers.

    Raises:
        TrialError: A number is not written in the cell.
    """
    text = trace.source
    block = None
    with suppress(SyntaxError):
        block = ast.parse(text)
    if block is None or not text:
        raise TrialError("only the text of a cell of Python is changed")
    stretches: list[Stretch] = []
    for name, size in sizes.items():
        found = find_numbers(block, name) or find_constants(block, name)
        if not found:
            raise TrialError(f"the cell does not write {name} as a number")
        stretches += [
            Stretch(one.lineno, one.col_offset, int(one.end_col_offset or 0), str(size))
            for one in found
        ]
    edit = Edit(stretches=tuple(stretches), cost=0.0)
    return (trace.cell.head + apply_edit(text, edit)).removesuffix("\n")
