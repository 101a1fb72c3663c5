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

from meta_magic.errors import MetaMagicError
from meta_magic.trace.trace import Trace
from meta_magic.view.sliders import AT_ONCE, Designs, Sizes, offer_sliders

MAX_TEXT: Final = 50_000
"""Characters of a report's file that its other designs may take."""

CHARACTERS: Final = 16 / 13
"""For each byte, as ``view/page.py`` writes bytes."""

SLOW: Final = 4
"""A block is recorded again faster than the first time, which imports modules."""

STEPS: Final = (1, 2, 4, 8, 16)
"""In how many parts the range of a slider is divided, one after the other."""

Json: TypeAlias = Any


def store_designs(
    trace: Trace, packed: bytes, designs: Designs, seconds: float
) -> bytes:
    """Return the designs that a saved report keeps; empty for none.

    Args:
        trace: The recording.
        packed: Its payload.
        designs: Records, and keeps the recordings.
        seconds: After this time no more are recorded, and none of a block that took
            ``SLOW`` times as long.
    """
    if trace.seconds > SLOW * seconds:
        return b""
    offers = [one for one in offer_sliders(trace) if not one["error"]]
    own = {one["name"]: one["value"] for one in offers}
    payload, now = unpack(packed), monotonic()
    end = now + seconds
    each, kept, stored = [*choose_sizes(offers)], list[Json](), b""
    for at in range(0, len(each), AT_ONCE):
        began, now = now, monotonic()
        if at and 2 * now - began > end:  # the next ones would take too long
            break
        some = each[at : at + AT_ONCE]
        try:
            designs.record(trace, some)
        except MetaMagicError:
            break
        for sizes in some:
            answer = designs.answer(trace, {"sizes": sizes, "pinned": own})
            if "buffers" in answer or "is_rule" in answer:
                kept.append({**answer, "sizes": sizes})
        longer = write_designs(offers, payload, kept)
        if CHARACTERS * len(longer) > MAX_TEXT:
            break
        stored = longer if kept else b""
    return stored


def unpack(packed: bytes) -> Json:
    """Return a payload as JSON."""
    return json.loads(gzip.decompress(packed))


def choose_sizes(offers: Sequence[Mapping[str, Any]]) -> Iterator[Sizes]:
    """Yield numbers of which one differs from the cell's own.

    The ends of each slider's range come first, then what halves the parts between.
    """
    own = {one["name"]: one["value"] for one in offers}
    orders = []
    for offer in offers:
        last = len(offer["values"]) - 1
        at = [part * last // n for n in STEPS for part in range(n + 1)]
        values = dict.fromkeys(offer["values"][one] for one in at)
        values.pop(offer["value"], None)
        orders.append([{**own, offer["name"]: value} for value in values])
    yield from filter(None, chain.from_iterable(zip_longest(*orders)))


def write_designs(
    offers: Sequence[Mapping[str, Any]], payload: Json, kept: Sequence[Json]
) -> bytes:
    """Return answers with their payloads as differences, compressed by gzip.

    Args:
        offers: The sliders.
        payload: The cell's own.
        kept: The answers of :class:`Designs`, each with its ``sizes``.
    """
    answers = [{**one} for one in kept]
    found = [one.pop("buffers", None) for one in answers]
    # Those of one part follow each other, so that gzip finds what repeats.
    changes = [find_changes(payload, unpack(one[0])) if one else {} for one in found]
    names = dict.fromkeys(name for one in changes for name in one)
    parts = {name: [one.get(name) for one in changes] for name in names}
    sliders = [
        {
            **offer,
            "values": sorted(
                {one["sizes"][offer["name"]] for one in kept} | {offer["value"]}
            ),
            "n_values": len(offer["values"]),
        }
        for offer in offers
    ]
    stored = {"sliders": sliders, "answers": answers, "parts": parts}
    return gzip.compress(write_json(stored).encode("utf-8", "surrogatepass"), mtime=0)


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
    return sum(1 for _ in takewhile(bool, map(eq, old, new)))
