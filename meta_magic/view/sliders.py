"""Sliders of the report: a block recorded again with other numbers, in a child.

``%%meta -p d_model=256..4096:256`` gives the report a slider. Each move asks for the
payload of the block with that number, and for what differs from the pinned design. A
number that fails is answered with the rule that it breaks. Read :meth:`Designs.answer`
first.

The first move forks a *template* from this process. It forks a child for each
recording: of the numbers that are asked for, and ahead of those near them.

A saved report has sliders without a kernel (:func:`store_designs`): each is moved alone
to some of its values. It stores what the payloads have besides the cell's own, up to
``MAX_TEXT``; ``static/varied.js`` reads that.
"""

import ast
import gzip
import json
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from operator import eq
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.children import Child, NoAnswer
from meta_magic.designs.design import Design, read_design
from meta_magic.designs.differences import compare
from meta_magic.errors import MetaMagicError, TrialError
from meta_magic.explain.across_cells import translate
from meta_magic.explain.edits.program_text import Edit, Stretch, apply_edit
from meta_magic.explain.explanations import Explanation, explain_alone
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.notes import count_cells
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_line
from meta_magic.trials.blocks import (
    Sizes,
    check_same,
    find_constants,
    find_numbers,
    label,
    move_spot,
    name_spot,
    parse_block,
)
from meta_magic.trials.dims import count_equal
from meta_magic.trials.fit import Recordings
from meta_magic.trials.sandbox import PRINTED, has_plotted
from meta_magic.trials.slices import Slice, restore_lines
from meta_magic.trials.trial import Key, ask_trials, check_rerun, run_template
from meta_magic.view.payload import pack

if TYPE_CHECKING:
    from meta_magic.trace.options import Rerun

SECONDS: Final = 10.0
"""Processor time that one recording may take at least."""

LONGER: Final = 3
"""How many times as long as the cell a recording with other numbers may take."""

TEMPLATE_SECONDS: Final = 600.0
"""Processor time that the process may take which forks a child for each recording."""

N_TRIED: Final = 3
"""How often the template is forked: it has ended if it was idle for long, and gives no
answer if it was forked while another recording began."""

SEARCH: Final = 8.0
"""Seconds of the search for a number that runs."""

AT_ONCE: Final = min(2, os.cpu_count() or 1)
"""Recordings that are made at the same time."""

ONE_THREAD: Final = Lock()
"""Children that two threads fork at once may hang."""

N_KEPT: Final = 200
"""Designs that are kept, to be compared with."""

MAX_PRINTED: Final = 4000
"""Bytes that a report shows of what a cell prints: the last ones."""

PLOTS: Final = "it plots, and a slider does not plot again: move that to another cell"

FAST: Final = 4
"""How much a payload is compressed: more takes longer."""


def offer_sliders(trace: Trace) -> list[dict[str, Any]]:
    """Return the sliders of a trace, as :func:`offer_slider` does."""
    asked = () if trace.rerun is None else trace.rerun.options.sliders
    return [offer_slider(trace, slider.name, slider.values) for slider in asked]


def offer_slider(trace: Trace, name: str, values: Sequence[int]) -> dict[str, Any]:
    """Return a slider for a number of the block.

    Returns:
        ``name``, ``values``, its ``value`` now, the ``spots`` that the text has it at,
        and as ``error`` why it cannot be moved; "" if it can.
    """
    offer = {"name": name, "values": values, "value": 0, "spots": [], "error": ""}
    try:
        block = parse_block(check_rerun(trace))
        check_same(name, find_numbers(block, name))
        value = Recordings(trace).read_size(name)
        offer |= {"values": sorted({*values, value}), "value": value}
        found = find_numbers(block, name) or find_constants(block, name)
        offer["spots"] = [[one.lineno, one.col_offset] for one in found]
    except MetaMagicError as error:
        # A variable that the text does not write can be moved, too.
        offer["error"] = "" if offer["value"] else str(error)
    return offer


N_STEPS: Final = 8
"""Steps from 0 to a number that the text writes; its slider goes to twice as many."""


def offer_number(trace: Trace, line: int, column: int) -> dict[str, Any]:
    """Return a slider for the number at a line and a column, in UTF-8 bytes from 0."""
    name = name_spot(parse_block(check_rerun(trace)), line, column)
    value = Recordings(trace).read_size(name)
    step = max(1, value // N_STEPS)
    values = range(step, max(2 * value, N_STEPS) + 1, step)
    return offer_slider(trace, name, values)


Again: TypeAlias = tuple[bytes, Design, str] | Explanation | str
"""Payload and design of a block, and what it printed; or why it failed."""

Found: TypeAlias = Again | TrialError
"""The same, or why the block was not recorded."""


State: TypeAlias = tuple[frozenset[str], tuple[int, int], float]
"""Names of numbers, how many cells ran, and how long a recording may take."""


class Designs:
    """Answers the questions of sliders about one trace, which it does not keep.

    Attributes:
        seconds: Processor time that one recording may take at least.
    """

    def __init__(self) -> None:
        self.seconds = SECONDS
        self._known: dict[Key, Found] = {}
        self._ahead: dict[Key, Found] = {}  # what nobody asked for yet
        self._asked: dict[Key, Key] = {}  # by the numbers as the template has them
        self._own: dict[str, int] = {}  # the cell's numbers
        self._own_design: Design | None = None
        self._blocks: dict[frozenset[str], tuple[Rerun, Slice | None]] = {}
        self._template: Child
        # What it was forked for.
        self._state: State | None = None
        self._end_template: Callable[[], object] = lambda: None

    def answer(self, trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the browser.

        Args:
            trace: The recording of the cell.
            asked: ``sizes``, the number of each name; and ``pinned``, those of the
                design to compare with, and ``with``, others to record ahead, which may
                be asked for alone; or ``near``, a name of which the nearest number that
                runs is wanted, and its ``values``; or ``is_written``, if the cell's
                text with these numbers is wanted. Or ``line`` and ``column`` of a
                number that shall get a slider.

        Returns:
            ``buffers``, the payload, what ``Difference.describe`` gives, and
            ``printed``, what the cell prints, if anything; or
            ``sizes`` that run; or ``source``; or a slider; or ``error``, a message, and
            ``is_rule``, if the block fails with the numbers.
        """
        try:
            if "line" in asked:
                return offer_number(trace, asked["line"], asked["column"])
            if "sizes" not in asked:
                if asked["with"]:
                    self.record(trace, {}, asked["with"])
                return {}
            sizes: Sizes = asked["sizes"]
            if "near" in asked:
                return self._find_near(trace, sizes, asked["near"], asked["values"])
            if "is_written" in asked:
                return {"source": write_numbers(trace, sizes)}
            found = self.record(trace, sizes, asked.get("with", ()))
            return self._show(trace, sizes, found, asked["pinned"])
        except MetaMagicError as error:
            return {"error": str(error)}

    def _show(
        self, trace: Trace, sizes: Sizes, found: Found, pinned: Sizes
    ) -> dict[str, Any]:
        """Return the payload with some numbers, and what differs from the pinned."""
        if isinstance(found, TrialError):
            raise found
        if isinstance(found, tuple):
            difference = compare(self._find_design(trace, pinned), found[1])
            shown = {"printed": found[2]} if found[2] else {}
            return {**difference.describe(), **shown, "buffers": [found[0]]}
        return {"error": say_rule(trace, sizes, found), "is_rule": True}

    def record(self, trace: Trace, sizes: Sizes, ahead: Sequence[Sizes] = ()) -> Found:
        """Return a block with other numbers; ``ahead`` are those that may come next.

        No numbers are wanted now if ``sizes`` is empty.
        """
        key, known = as_key(sizes), self._known
        if key in known:
            return known[key]
        names = frozenset(sizes or [name for one in ahead[:1] for name in one])
        seconds = max(self.seconds, LONGER * trace.seconds)
        if (state := (names, count_cells(), seconds)) != self._state:
            self._end_template()  # a cell that ran may have changed variables
            self._state = None
            self._ahead, self._asked = {}, {}
        each = {as_key(one): one for one in (sizes, *ahead)}
        new = [each[one] for one in each if one not in known and one not in self._ahead]
        if new != [{}] and key not in self._ahead:
            answers = self._ask_template(trace, new, state)
            self._ahead |= {
                other: (one[0], name_numbers(one[1], dict(other)), one[2])
                if isinstance(one, tuple)
                else one
                for other, one in answers.items()
            }
        found = self._ahead.pop(key, None)
        if found is None:
            return TrialError("another cell is being recorded")
        if not isinstance(found, TrialError):
            known[key] = found
        for some in (known, self._ahead):
            for old in [*some][:-N_KEPT]:
                del some[old]
        return found

    def _ask_template(
        self, trace: Trace, each: Sequence[Sizes], state: State
    ) -> dict[Key, Found]:
        """Return what a block is with the first of some numbers, and with others."""
        rerun, joined = self._find_block(trace, state[0])
        seconds = state[2]
        for _ in range(N_TRIED):
            if self._state is None:
                ask = partial(read_again, trace, joined)
                block = replace(trace, rerun=rerun)
                template = partial(run_template, block, ask, seconds, AT_ONCE)
                RARE_COLLECTION.wait()
                with ONE_THREAD:
                    self._template = Child(template, TEMPLATE_SECONDS)
                self._state = state
                self._end_template = weakref.finalize(self, self._template.end)
                self._template.read(seconds)
            moved = [move_names(one, joined) for one in each]
            self._asked.update(zip(map(as_key, moved), map(as_key, each), strict=True))
            self._template.send(moved)
            found: dict[Key, Found] | NoAnswer = self._template.read(LONGER * seconds)
            if not isinstance(found, NoAnswer):
                return {self._asked[key]: one for key, one in found.items()}
            self._end_template()
            self._state = None
        return {}

    def _find_block(
        self, trace: Trace, names: Collection[str]
    ) -> "tuple[Rerun, Slice | None]":
        """Return the block to run again if names vary, and what is joined in it."""
        key = frozenset(names)
        if key not in self._blocks:
            runs = Recordings(trace)
            rerun = runs.find_trace(*names).rerun
            joined = None if rerun is trace.rerun else runs.joined
            self._blocks[key] = check_rerun(replace(trace, rerun=rerun)), joined
        return self._blocks[key]

    def _find_design(self, trace: Trace, sizes: Sizes) -> Design:
        """Return the design with some numbers; the cell's own needs no recording."""
        for name in {*sizes} - {*self._own}:
            self._own[name] = Recordings(trace).read_size(name)
        if all(self._own[name] == size for name, size in sizes.items()):
            if self._own_design is None:
                self._own_design = at_any_depth(read_design)(trace)
            return name_numbers(self._own_design, sizes)
        found = self.record(trace, sizes)
        if not isinstance(found, tuple):
            raise TrialError("the pinned design fails now")
        return found[1]

    def _find_near(
        self, trace: Trace, sizes: Sizes, name: str, values: Sequence[int]
    ) -> dict[str, Any]:
        """Return the numbers that run, with that of a name as near as can be."""
        end, wanted = monotonic() + SEARCH, sizes[name]
        rerun, joined = self._find_block(trace, sizes)
        near = sorted({*values} - {wanted}, key=lambda one: (abs(one - wanted), one))
        tried = 0
        for at in range(0, len(near), AT_ONCE):
            if monotonic() > end:
                break
            some = [{**sizes, name: value} for value in near[at : at + AT_ONCE]]
            tried += len(some)
            with ONE_THREAD:
                runs = ask_trials(
                    replace(trace, rerun=rerun),
                    lambda again, _: again.error is None,
                    [move_names(one, joined) for one in some],
                    seconds=max(self.seconds, LONGER * trace.seconds),
                    asks_failed=True,
                )
            for one, answer in zip(some, runs, strict=True):
                if answer is True:
                    return {"sizes": one}
        raise TrialError(f"of the {tried} nearest numbers of {label(name)} none runs")


def as_key(sizes: Sizes) -> Key:
    """Return numbers as the key of what was recorded with them."""
    return frozenset(sizes.items())


def name_numbers(design: Design, sizes: Sizes) -> Design:
    """Return a design that has some numbers, as messages name them."""
    named = {label(name): size for name, size in sizes.items()}
    return replace(design, numbers={**design.numbers, **named})


def move_names(sizes: Sizes, joined: Slice | None) -> dict[str, int]:
    """Return numbers by their names in the text that is run again."""
    n_above = joined.n_above if joined else 0
    return {move_spot(name, n_above): size for name, size in sizes.items()}


def read_again(trace: Trace, joined: Slice | None, again: Trace, _: object) -> Again:
    """Return payload, design and output of a trace's block; or why it failed."""
    if again.error is None:
        if has_plotted():
            raise TrialError(PLOTS)
        restored = restore_lines(again, trace, joined)
        printed = PRINTED.getvalue()[-MAX_PRINTED:].decode("utf-8", "replace")
        return pack(restored, FAST), at_any_depth(read_design)(restored), printed
    if again.failed is None:
        return format_line(again.error_line) + again.error
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
    """Return the text of the cell with other numbers."""
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


MAX_TEXT: Final = 50_000
"""Characters of a report's file that its other designs may take."""

CHARACTERS: Final = 16 / 13
"""Characters of text for each byte, as ``view/page.py`` writes bytes."""

TOO_SLOW: Final = 4
"""A block that took so many times the time allowed is not recorded again."""

STEPS: Final = (1, 2, 4, 8, 16)
"""In how many parts the range of a slider is divided, one after the other."""

Json: TypeAlias = Any


def store_designs(
    trace: Trace, packed: bytes, designs: Designs, seconds: float
) -> bytes:
    """Return the designs that a saved report keeps, as JSON by gzip; empty for none.

    A block that took ``TOO_SLOW`` times as long as ``seconds`` is not recorded.

    Returns:
        ``sliders``; ``answers``, as those of :class:`Designs`, each with its ``sizes``;
        and ``parts``: for each part of the payload, what changes in it by each answer.
        So similar changes follow each other, and gzip finds what repeats.
    """
    offers = [one for one in offer_sliders(trace) if not one["error"]]
    each, answers = [*choose_sizes(offers)], list[Json]()
    if trace.seconds > TOO_SLOW * seconds or RARE_COLLECTION.n_entered:
        return b""
    payload, stored, changes = json.loads(gzip.decompress(packed)), b"", list[Json]()
    now = monotonic()
    end, designs.seconds = now + seconds, seconds
    for at in range(0, len(each), AT_ONCE):
        before, now = now, monotonic()
        if at and 2 * now - before > end:  # the next ones would take too long
            break
        some = each[at : at + AT_ONCE]
        for sizes in some:
            asked = {"sizes": sizes, "pinned": own_sizes(offers), "with": some}
            answer = designs.answer(trace, asked)
            new = [*map(gzip.decompress, answer.pop("buffers", ()))]
            if new or "is_rule" in answer:
                answers.append({**answer, "sizes": sizes})
                changes.append(find_changes(payload, json.loads(new[0])) if new else {})
        names = {name: None for one in changes for name in one}
        parts = {name: [one.get(name) for one in changes] for name in names}
        sliders = [limit_slider(offer, answers) for offer in offers]
        text = write_json({"sliders": sliders, "answers": answers, "parts": parts})
        longer = gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)
        if not answers or CHARACTERS * len(longer) > MAX_TEXT:
            break
        stored = longer
    designs.seconds = SECONDS
    return stored


def own_sizes(offers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the cell's numbers."""
    return {one["name"]: one["value"] for one in offers}


def choose_sizes(offers: Sequence[Mapping[str, Any]]) -> Iterator[Sizes]:
    """Yield single changes of the numbers: the ends of each range, then halves."""
    orders = []
    for offer in offers:
        last = len(offer["values"]) - 1
        at = [part * last // n for n in STEPS for part in range(n + 1)]
        values = dict.fromkeys(offer["values"][one] for one in at)
        values.pop(offer["value"], None)
        orders.append([{**own_sizes(offers), offer["name"]: one} for one in values])
    yield from filter(None, chain.from_iterable(zip_longest(*orders)))


def limit_slider(offer: Mapping[str, Any], answers: Sequence[Json]) -> Json:
    """Return a slider that has only the values of answers."""
    values = {offer["value"], *(one["sizes"][offer["name"]] for one in answers)}
    return {**offer, "values": sorted(values), "n_values": len(offer["values"])}


def write_json(value: Json) -> str:
    """Return JSON as short text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def find_changes(old: Json, new: Json) -> Json:
    """Return what makes a JSON value another, as ``static/varied.js`` reads it.

    Returns:
        ``{name: change}`` for some items of a record, or of a list by their index;
        ``[first, last, items]`` for a list, of which so many first and last items stay;
        ``[value]`` for what is replaced. None if nothing changes.
    """
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        return {
            name: find_changes(old[name], one) if name in old else [one]
            for name, one in new.items()
            if name not in old or old[name] != one
        }
    if not (isinstance(old, list) and isinstance(new, list)):
        return [new]
    if len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        items = {str(at): find_changes(*pair) for at, pair in pairs if not eq(*pair)}
        return min([new], items, key=lambda one: len(write_json(one)))
    first = count_equal(old, new)
    last = count_equal(old[first:][::-1], new[first:][::-1])
    return [first, last, new[first : len(new) - last]]
