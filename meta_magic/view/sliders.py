"""Sliders of the report: a block recorded again with other numbers, in a child.

``%%meta -p d_model=256..4096:256`` gives the report a slider. Each move asks for the
payload of the block with that number, and for what differs from the pinned design. A
number that fails is answered with the rule that it breaks. Read :meth:`Designs.answer`
first.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from meta_magic.designs.design import Design, read_design
from meta_magic.designs.differences import compare
from meta_magic.errors import MetaMagicError, TrialError
from meta_magic.explain.across_cells import translate
from meta_magic.explain.edits.program_text import Edit, Stretch, apply_edit
from meta_magic.explain.explanations import Explanation, explain_alone
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.earlier_cells import name_cell
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import find_numbers, parse_block
from meta_magic.trials.fields import find_constants, label, move_place, name_place
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.slices import FILE, Slice
from meta_magic.trials.trial import Question, ask_trials, check_rerun
from meta_magic.view.payload import pack

T = TypeVar("T")

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

FAST: Final = 4
"""How much a payload is compressed: more takes longer."""

LINE: Final = 3
"""Which word of a module call is its line."""


def offer_sliders(trace: Trace) -> list[dict[str, Any]]:
    """Return the sliders of a trace, as :func:`offer_slider` does.

    ``reason`` says why a slider cannot be moved; "" if it can.
    """
    asked = () if trace.rerun is None else trace.rerun.options.sliders
    offered = []
    for slider in asked:
        try:
            offered.append(offer_slider(trace, slider.name, slider.values))
        except MetaMagicError as error:
            empty = {"value": 0, "places": [], "reason": str(error)}
            offered.append({"name": slider.name, "values": slider.values, **empty})
    return offered


def offer_slider(trace: Trace, name: str, values: Sequence[int]) -> dict[str, Any]:
    """Return a slider: ``name``, ``values``, ``value``, and ``places`` in the text.

    Raises:
        TrialError: The block has no such number, or cannot run again.
    """
    value = Recordings(trace).read_size(name)
    block = parse_block(check_rerun(trace))
    with suppress(TrialError):  # a variable, and an argument with several values
        found = find_numbers(block, name) or find_constants(block, name)
    return {
        "name": name,
        "values": sorted({*values, value}),
        "value": value,
        "places": [[one.lineno, one.col_offset] for one in found],
        "reason": "",
    }


N_STEPS: Final = 8
"""Steps from 0 to a number that a slider without given values makes; it goes to twice
the number."""


def offer_number(trace: Trace, line: int, column: int) -> dict[str, Any]:
    """Return a slider for the number that is written at a place of the block.

    Args:
        trace: The recording.
        line: Its line, in the file of the block.
        column: Its column, in UTF-8 bytes from 0.

    Raises:
        TrialError: No positive integer is there, or the block cannot run again.
    """
    name = name_place(parse_block(check_rerun(trace)), line, column)
    value = Recordings(trace).read_size(name)
    step = max(1, value // N_STEPS)
    values = range(step, max(2 * value, N_STEPS) + 1, step)
    return offer_slider(trace, name, values)


Again: TypeAlias = tuple[bytes, Design] | Explanation | str
"""Payload and design of a block, or why it failed."""

Found: TypeAlias = Again | TrialError
"""The same, or why the block was not recorded."""


class Block(NamedTuple):
    """What runs again if some numbers vary.

    Attributes:
        rerun: The block; with the cells and files before it, if they have a number.
        joined: These, as one text; None if only the block runs.
    """

    rerun: Rerun
    joined: Slice | None

    def ask(
        self, trace: Trace, question: Question[T], each: Sequence[Sizes]
    ) -> list[T | TrialError]:
        """Record a trace's block with other numbers, and ask about each recording."""
        runs = replace(trace, rerun=self.rerun)
        n_above = 0 if self.joined is None else self.joined.n_above
        moved = [
            {move_place(name, n_above): size for name, size in sizes.items()}
            for sizes in each
        ]
        return ask_trials(
            runs, question, moved, (), SECONDS, at_once=AT_ONCE, asks_failed=True
        )


def find_block(trace: Trace, names: Collection[str]) -> Block:
    """Return what runs again if some numbers of a trace vary.

    Raises:
        TrialError: It cannot be recorded again.
    """
    recordings = Recordings(trace)
    runs = recordings.find_trace(*names)
    return Block(check_rerun(runs), None if runs is trace else recordings.joined)


class Designs:
    """Answers the questions of sliders about one trace, which it does not keep."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, int]], Found] = {}
        self._own: dict[str, int] = {}  # the cell's numbers
        self._own_design: Design | None = None
        self._blocks: dict[frozenset[str], Block] = {}

    def answer(self, trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the browser.

        Args:
            trace: The recording of the cell.
            asked: ``sizes``, the number of each name; and ``pinned``, those of the
                design to compare with; or ``near``, a name of which the nearest number
                that runs is wanted, and its ``values``; or ``is_written``, if the
                cell's text with these numbers is wanted; or no sizes, and ``line`` and
            ``column`` of a number that shall get a slider.

        Returns:
            ``buffers``, the payload, and what ``Difference.describe`` gives; or
            ``sizes`` that run; or ``source``; or a slider; or ``error``, a message, and
            ``is_rule``, if the block fails with the numbers.
        """
        try:
            if "line" in asked:
                return offer_number(trace, asked["line"], asked["column"])
            sizes: Sizes = asked["sizes"]
            if "near" in asked:
                return self._find_near(trace, sizes, asked["near"], asked["values"])
            if "is_written" in asked:
                return {"source": write_numbers(trace, sizes)}
            return self._show(trace, sizes, asked["pinned"])
        except MetaMagicError as error:
            return {"error": str(error)}

    def _show(self, trace: Trace, sizes: Sizes, pinned: Sizes) -> dict[str, Any]:
        """Return the payload with some numbers, and what differs from the pinned."""
        (found,) = self.record(trace, [sizes])
        if isinstance(found, TrialError):
            raise found
        if isinstance(found, tuple):
            difference = compare(self._find_design(trace, pinned), found[1])
            return {**difference.describe(), "buffers": [found[0]]}
        return {"error": say_rule(trace, sizes, found), "is_rule": True}

    def record(self, trace: Trace, each: Sequence[Sizes]) -> list[Found]:
        """Return what a block is with other numbers, each recorded once."""
        keys = [frozenset(sizes.items()) for sizes in each]
        todo = dict(zip(keys, each, strict=True))
        todo = {key: todo[key] for key in keys if key not in self._known}
        found = {}
        if todo:
            block = self._find_block(trace, each[0])
            again = record_again(trace, block, [*todo.values()])
            found = dict(zip(todo, again, strict=True))
        answers = [found[key] if key in found else self._known[key] for key in keys]
        for key, one in found.items():
            if not isinstance(one, TrialError):
                self._known[key] = one
        while len(self._known) > N_KEPT:
            del self._known[next(iter(self._known))]
        return answers

    def _find_block(self, trace: Trace, names: Collection[str]) -> Block:
        key = frozenset(names)
        if key not in self._blocks:
            self._blocks[key] = find_block(trace, names)
        return self._blocks[key]

    def _find_design(self, trace: Trace, sizes: Sizes) -> Design:
        """Return the design with some numbers; the cell's own needs no recording."""
        for name in {*sizes} - {*self._own}:
            self._own[name] = Recordings(trace).read_size(name)
        if all(self._own[name] == size for name, size in sizes.items()):
            if self._own_design is None:
                self._own_design = at_any_depth(read_design)(trace)
            return name_numbers(self._own_design, sizes)
        (found,) = self.record(trace, [sizes])
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
        end, wanted = monotonic() + SEARCH, sizes[name]
        near = sorted({*values} - {wanted}, key=lambda one: (abs(one - wanted), one))
        RARE_COLLECTION.wait()
        tried = 0
        for at in range(0, len(near), AT_ONCE):
            if monotonic() > end:
                break
            some = [{**sizes, name: value} for value in near[at : at + AT_ONCE]]
            block = self._find_block(trace, sizes)
            answers = block.ask(trace, lambda again, _: again.error is None, some)
            tried += len(some)
            for one, answer in zip(some, answers, strict=True):
                if answer is True:
                    return {"sizes": one}
        raise TrialError(f"of the {tried} nearest numbers of {label(name)} none runs")


def name_numbers(design: Design, sizes: Sizes) -> Design:
    """Return a design that has some numbers, as messages name them."""
    named = {label(name): size for name, size in sizes.items()}
    return replace(design, numbers={**design.numbers, **named})


def record_again(trace: Trace, block: Block, each: Sequence[Sizes]) -> list[Found]:
    """Record a block with other numbers, each time in a child.

    Raises:
        TrialError: It cannot be recorded again.
    """
    question = partial(read_again, trace, block.joined)
    found: list[Found | None] = [None] * len(each)
    for _ in range(N_TRIED):
        todo = [at for at, one in enumerate(found) if one is None]
        RARE_COLLECTION.wait()
        answers = block.ask(trace, question, [each[at] for at in todo]) if todo else []
        for at, answer in zip(todo, answers, strict=True):
            if isinstance(answer, tuple):
                found[at] = answer[0], name_numbers(answer[1], each[at])
            else:
                found[at] = answer
    busy = TrialError("another cell is being recorded")
    return [busy if one is None else one for one in found]


def read_again(
    trace: Trace, joined: Slice | None, again: Trace, _variables: Mapping[str, object]
) -> Again | None:
    """Return payload and design of a block recorded again; or why it failed.

    Runs in a child; None if that was forked while something was recorded.
    """
    if RARE_COLLECTION.n_entered:
        return None
    if again.error is None:
        placed = place_lines(again, trace, joined)
        return pack(placed, FAST), at_any_depth(read_design)(placed)
    if again.failed is None:
        where = f"line {again.error_line}: " if again.error_line else ""
        return where + again.error
    return explain_alone(again, again.failed)


def place_lines(again: Trace, trace: Trace, joined: Slice | None) -> Trace:
    """Return a recording of a trace's block with the trace's text, at its lines.

    Args:
        again: The recording.
        trace: The trace.
        joined: The cells and files that ran as one text; None if only the block ran.
    """
    program = again.program
    if joined is None:
        return replace(again, cell=trace.cell)
    files = {name_cell(at.file): at.file for at in trace.program.positions}
    files |= {"": check_rerun(trace).file}

    def place(at: SourcePosition | None) -> SourcePosition | None:
        if at is None or at.file != FILE:
            return at
        part, line = joined.find(at.line)
        file = part.path or files.get(part.name, FILE)
        return replace(at, file=file, line=line, end_line=line + at.end_line - at.line)

    def find_line(line: int | None) -> int | None:
        return line - joined.n_above if line and line > joined.n_above else None

    calls = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    calls = calls.copy()
    calls[:, LINE] = np.maximum(calls[:, LINE], joined.n_above) - joined.n_above
    sites = (
        replace(one, position=place(one.position), line=find_line(one.line))
        for one in program.call_sites
    )
    placed = replace(
        program,
        module_rows=calls.tobytes(),
        call_sites=tuple(sites),
        positions=tuple(place(one) or one for one in program.positions),
    )
    notes = (replace(n, line=find_line(n.line), lines=()) for n in again.recorded_notes)
    return replace(again, program=placed, cell=trace.cell, recorded_notes=tuple(notes))


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
    text, first = trace.source, trace.cell.first_line
    block = None
    with suppress(SyntaxError):
        block = ast.increment_lineno(ast.parse(text), first - 1)
    if block is None or not text:
        raise TrialError("only the text of a cell of Python is changed")
    stretches: list[Stretch] = []
    for name, size in sizes.items():
        found = find_numbers(block, name) or find_constants(block, name)
        if not found:
            raise TrialError(f"the cell does not write {label(name)} as a number")
        stretches += [
            Stretch(one.lineno, one.col_offset, int(one.end_col_offset or 0), str(size))
            for one in found
        ]
    edit = Edit(stretches=tuple(stretches), cost=0.0)
    return (trace.cell.head + apply_edit(text, edit, first)).removesuffix("\n")
