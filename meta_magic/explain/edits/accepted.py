"""What a failed call accepts: other numbers, and operands that are changed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice, pairwise, product, takewhile
from time import process_time
from typing import Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.explain.edits.operand_changes import (
    list_accepted_casts,
    list_accepted_forms,
    list_casts,
    list_forms,
    turn,
)
from meta_magic.explain.probing import Change, Probe, Shapes, Variable

__all__ = ["Accepted", "Accepting", "list_accepted"]

MAX_NUMBERS: Final = 40

MAX_PAIRS: Final = 12

SECONDS: Final = 0.25
"""How long numbers are looked for, and how long changes after them."""


class Accepting(NamedTuple):
    """Changes of operands with which a call is accepted.

    Attributes:
        changes: (operand, text), ``{}`` in it for the operand.
        is_as_large: Whether nothing is broadcast to what is larger than all operands.
        keeps_shape: Whether a single one that is changed has the shape of the result.
    """

    changes: tuple[tuple[int, str], ...]
    is_as_large: bool = True
    keeps_shape: bool = False


class Accepted(NamedTuple):
    """What a failed call accepts.

    Attributes:
        numbers: (what it got, what it accepts in its place), each once; the likeliest
            first.
        changes: Changes of operands.
        is_of_values: Whether it accepts what it got, as far as metadata tells.
    """

    numbers: tuple[tuple[int, int], ...] = ()
    changes: tuple[Accepting, ...] = ()
    is_of_values: bool = False


def list_accepted(probe: Probe, written: Collection[int]) -> Accepted:
    """Return what a failed call accepts; nothing where it accepts what it got.

    Args:
        probe: Makes the call.
        written: The operands that the code writes; no others are changed.
    """
    if probe.accepts({}):
        return Accepted(is_of_values=True)
    end = process_time() + SECONDS
    found = chain(walk_numbers(probe), walk_groups(probe))
    numbers = dict.fromkeys(takewhile(lambda _: process_time() < end, found))
    known = {*probe.values.values()}
    # Those of other numbers first, and last what is only broadcast.
    ordered = sorted(numbers, key=lambda pair: (pair[1] == 1, pair[1] not in known))
    all_changes = walk_changes(probe, sorted(written))
    changes = [*takewhile(lambda _: process_time() < end + SECONDS, all_changes)]
    if not changes and process_time() < end + SECONDS:
        changes = [*islice(walk_pairs(probe, sorted(written)), MAX_PAIRS)]
    return Accepted(tuple(ordered[:MAX_NUMBERS]), tuple(changes))


def walk_numbers(probe: Probe) -> Iterator[tuple[int, int]]:
    """Yield single numbers, and what is accepted in their place."""
    for variable, value in probe.values.items():
        for size in probe.list_candidates(variable):
            if probe.accepts({variable: size}):
                yield value, size


def walk_groups(probe: Probe) -> Iterator[tuple[int, int]]:
    """Yield numbers that occur several times, and what is accepted for all together."""
    sizes = {variable: n for variable, n in probe.values.items() if variable.is_size}
    operands = range(len(probe.call.operands))
    parts = [[v for v in sizes if v.operand == number] for number in operands]
    parts.append([v for v in probe.values if v.operand != 0])
    groups: dict[tuple[Variable, ...], None] = {}
    for part in parts:
        for value in dict.fromkeys(probe.values[v] for v in part):
            groups[tuple(v for v in part if probe.values[v] == value)] = None
    for group in groups:
        if len(group) > 1:
            for size in probe.list_candidates(group[0]):
                if probe.accepts(dict.fromkeys(group, size)):
                    yield probe.values[group[0]], size


def walk_changes(probe: Probe, written: Sequence[int]) -> Iterator[Accepting]:
    """Yield changes of single operands."""
    for number in written:
        for change in (
            *list_accepted_casts(probe, number),
            *list_accepted_forms(probe, number),
        ):
            yield judge(probe, {number: change})
        for text in walk_crops(probe, number):
            yield Accepting(((number, text),))


def walk_crops(probe: Probe, number: int) -> Iterator[str]:
    """Yield how an operand is cut to a size that is accepted."""
    for dim, size in enumerate(probe.call.operands[number].geometry.shape):
        variable = Variable(number, dim)
        for right in probe.list_candidates(variable):
            if 1 < right < size and probe.accepts({variable: right}):
                yield f"{{}}[{':, ' * dim}:{right}]"


def walk_pairs(probe: Probe, written: Sequence[int]) -> Iterator[Accepting]:
    """Yield two changes, where none is enough: of an operand, or of two."""
    operands = probe.call.operands
    for number in written:
        casts = list_casts(operands[number])
        for form, cast in product(list_forms(operands, number), islice(casts, 2)):
            both = Change(cast.text.format(form.text), compose(form, cast))
            if probe.run(changes={number: both}) is not None:
                yield judge(probe, {number: both})
    turns = {n: [*turn(len(operands[n].geometry.shape))] for n in written}
    for first, second in pairwise(written):
        for pair in product(turns[first], turns[second]):
            changes = dict(zip((first, second), pair, strict=True))
            if probe.run(changes=changes) is not None:
                yield judge(probe, changes)


def compose(first: Change, second: Change) -> Callable[[Tensor], Tensor]:
    """Return what makes one change and then another."""
    return lambda tensor: second.make(first.make(tensor))


def judge(probe: Probe, changes: dict[int, Change]) -> Accepting:
    """Return the record of changes that are accepted."""
    returned = probe.run(changes=changes) or ()
    texts = tuple((number, change.text) for number, change in changes.items())
    given = [operand.geometry.shape for operand in probe.call.operands]
    changed = [change_shape(shape, changes.get(n)) for n, shape in enumerate(given)]
    return Accepting(
        changes=texts,
        is_as_large=is_as_large({*given, *changed}, changed, returned),
        keeps_shape=returned[:1] == tuple(changed[n] for n in changes),
    )


def change_shape(shape: tuple[int, ...], change: Change | None) -> tuple[int, ...]:
    """Return the shape of what is changed."""
    made = torch.empty(shape, device="meta")
    return shape if change is None else tuple(change.make(made).shape)


def is_as_large(
    known: Collection[tuple[int, ...]],
    given: Sequence[tuple[int, ...]],
    returned: Shapes,
) -> bool:
    """Whether operands are not broadcast to what is larger than each of them."""
    if not returned or returned[0] in known:
        return True
    try:
        return tuple(torch.broadcast_shapes(*given)) != returned[0]
    except RuntimeError:
        return True
