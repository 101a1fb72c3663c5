"""Which module of one design is which of another.

Names alone do not identify a module: a layer that is put into a ``Sequential``
renumbers all after it, and a renamed block keeps its content. The children of two
matched modules are aligned in order, as texts are, at the least cost; what is then left
on both sides with the same content has moved. Read :func:`align` first.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from meta_magic.designs.design import Part

Pair: TypeAlias = tuple[Part | None, Part | None]
"""A module before and after; None where it was added, or removed."""

# Costs are integers: their sums are compared.
GAP: Final = 60
"""The cost of a module that was added or removed."""

SIZES: Final = 20
"""The cost of other sizes, with the same classes and names below."""

BELOW: Final = 50
"""The cost of other modules below, in a module of the same class."""

CLASS: Final = 70
ALIKE: Final = 55
"""The cost of another class, and of another one that the same file defines, as ``GELU``
instead of ``ReLU``. If the name differs, too, the modules are never matched."""

NAME: Final = 25
NUMBER: Final = 2
"""The cost of another name, and of another number in a list."""

MAX_CELLS: Final = 250_000
"""Lists whose lengths have a larger product are matched by name."""


def align(before: Sequence[Part], after: Sequence[Part]) -> list[Pair]:
    """Return the roots of two designs and all below them, each with its match.

    Parents come first. What is below a module that was added or removed is left out,
    unless it has moved.
    """
    for root in (*before, *after):
        for part in reversed([*root.walk()]):  # hashes of children come first
            _ = part.content, part.structure
    pairs: list[Pair] = []
    todo = _align_lists(before, after, are_roots=True)[::-1]
    while todo:
        old, new = todo.pop()
        pairs.append((old, new))
        if old is not None and new is not None:
            todo += _align_lists(old.children, new.children)[::-1]
    return _join_moved(pairs)


def _align_lists(
    before: Sequence[Part], after: Sequence[Part], *, are_roots: bool = False
) -> list[Pair]:
    """Return the pairs of two lists of siblings, in their order."""
    if [one.name for one in before] == [one.name for one in after] and all(
        old.class_name == new.class_name for old, new in zip(before, after, strict=True)
    ):
        return [*zip(before, after, strict=True)]
    head = _count_equal(before, after)
    tail = _count_equal(before[head:][::-1], after[head:][::-1])
    old, new = (one[head : len(one) - tail] for one in (before, after))
    if len(old) * len(new) > MAX_CELLS:
        middle = _match_names(old, new)
    else:
        middle = _find_cheapest(old, new, are_roots=are_roots)
    ends = [*zip(before[:head], after[:head], strict=True)]
    rest = zip(before[len(before) - tail :], after[len(after) - tail :], strict=True)
    return [*ends, *_join_named(middle), *rest]


def _join_named(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield pairs in which siblings of one name and class are one, in any order."""
    removed = {
        (old.name, old.class_name): old
        for old, new in pairs
        if old is not None and new is None and not old.name.isdecimal()
    }
    added = {(new.name, new.class_name) for old, new in pairs if old is None and new}
    for old, new in pairs:
        if old is None and new is not None:
            yield removed.get((new.name, new.class_name)), new
        elif new is not None or old is None or (old.name, old.class_name) not in added:
            yield old, new


def _count_equal(before: Sequence[Part], after: Sequence[Part]) -> int:
    """Return how many modules at the beginning of two lists are the same."""
    pairs = zip(before, after, strict=False)
    same = (
        old.content == new.content and (old.name == new.name or _are_numbered(old, new))
        for old, new in pairs
    )
    return sum(1 for _ in takewhile(bool, same))


def _are_numbered(old: Part, new: Part) -> bool:
    return old.name.isdecimal() and new.name.isdecimal()


def _match_names(before: Sequence[Part], after: Sequence[Part]) -> list[Pair]:
    by_name = {one.name: one for one in before}
    pairs: list[Pair] = [(by_name.pop(new.name, None), new) for new in after]
    return pairs + [(old, None) for old in by_name.values()]


def _find_cheapest(
    before: Sequence[Part], after: Sequence[Part], *, are_roots: bool
) -> list[Pair]:
    """Return the alignment of two lists that costs least."""
    n, m = len(before), len(after)
    # By how many modules of each list are left.
    costs = {(0, j): GAP * j for j in range(m + 1)}
    costs |= {(i, 0): GAP * i for i in range(n + 1)}
    matched = {}
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            old, new = before[n - i], after[m - j]
            matched[i, j] = costs[i - 1, j - 1] + _cost(old, new, are_roots=are_roots)
            gap = GAP + min(costs[i - 1, j], costs[i, j - 1])
            costs[i, j] = min(matched[i, j], gap)
    pairs: list[Pair] = []
    i, j = n, m
    while i or j:
        if i and j and costs[i, j] == matched[i, j]:
            pairs.append((before[n - i], after[m - j]))
            i, j = i - 1, j - 1
        elif i and costs[i, j] == GAP + costs[i - 1, j]:
            pairs.append((before[n - i], None))
            i -= 1
        else:
            pairs.append((None, after[m - j]))
            j -= 1
    return pairs


def _cost(old: Part, new: Part, *, are_roots: bool) -> int:
    """Return how unlikely it is that a module became another one."""
    is_number = are_roots or _are_numbered(old, new)
    name = 0 if old.name == new.name else NUMBER if is_number else NAME
    if old.content == new.content:
        return name
    if old.structure == new.structure:
        return name + SIZES
    if old.class_name == new.class_name:
        return name + BELOW
    if name >= NAME:
        return name + 2 * GAP
    return name + (ALIKE if old.home == new.home else CLASS)


def _join_moved(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs in which a module that moved is one, not removed and added.

    Only what has parameters is looked for: a second ``ReLU`` is no sign of a move.
    """
    removed = [old for old, new in pairs if old is not None and new is None]
    added = [new for old, new in pairs if old is None and new is not None]
    moved = [*_find_equal(removed, added)]
    known = {id(one) for pair in moved for one in pair}
    rest = [one for one in added if id(one) not in known]
    wholes = [one for one in removed if id(one) not in known]
    moved += [(old, new) for new, old in _find_equal(rest, wholes)]
    known |= {id(one) for pair in moved for one in pair}
    kept = [pair for pair in pairs if not any(id(one) in known for one in pair)]
    return [*kept, *moved]


def _find_equal(
    tops: Sequence[Part], others: Sequence[Part]
) -> Iterator[tuple[Part, Part]]:
    """Yield each of some modules with one of the same content in others."""
    others_by_content: dict[int, list[Part]] = {}
    for other in others:
        for part in other.walk():
            others_by_content.setdefault(part.content, []).append(part)
    for top in tops:
        found = others_by_content.get(top.content)
        if found and top.n_parameters:
            yield top, found.pop(0)
