"""The designs that a saved report keeps, so that its sliders move without a kernel.

Each slider is moved alone to some of its values, and recorded. A report stores what
the payloads have besides the cell's own, up to ``MAX_TEXT``; ``static/varied.js`` reads
that. Read :func:`store_designs` first.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile, zip_longest
from operator import eq
from time import monotonic
from typing import Any, Final, TypeAlias

from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import Sizes
from meta_magic.view.sliders import AT_ONCE, SECONDS, Designs, offer_sliders

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


def count_equal(old: Sequence[Json], new: Sequence[Json]) -> int:
    """Return how many items are the same at the beginning of two lists."""
    return sum(takewhile(bool, map(eq, old, new)))
