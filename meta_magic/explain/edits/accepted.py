"""What a failed call accepts: other numbers, and changes of its operands.

``F.embedding(i, w)`` refuses a float ``i`` and accepts ``i.long()``. Such changes are
what people write in their code: casts, ``.T``, ``.unsqueeze(0)``, a crop. Each is tried
on the failed call before an edit writes it. A new change is a row of a ``_list_*`` or
``_*_dimensions`` function. Read :func:`find_accepted`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, groupby, takewhile
from math import inf, isqrt, prod
from operator import eq, itemgetter, methodcaller
from time import process_time
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from meta_magic.explain.probing import Change, Probe, Shapes, Variable
from meta_magic.session.raised_calls import call_module
from meta_magic.trace.failed_call import FailedCall, Operand

CASTS: Final = {
    "float": torch.float32,
    "long": torch.int64,
    "bool": torch.bool,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
"""Methods by their names, the likeliest first."""

MATRIX: Final = 2
IMAGE: Final = 4
ALL: Final = slice(None)
CONTIGUOUS: Final = Change("{}.contiguous()", methodcaller("contiguous"))

OF_ORDER: Final = re.compile(
    r"input.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)"
)
"""Part of the message of ``permute`` that is given too few or too many dimensions."""

DETACHED: Final = Change("{}.detach()", methodcaller("detach"))
SAME: Final = (Change("{}.clone()", methodcaller("clone")), CONTIGUOUS, DETACHED)

WRITTEN: Final = re.compile(r"[\w.\[\]]+")
"""Names that are Python expressions."""


def list_accepted_casts(probe: Probe, number: int) -> list[Change]:
    """Return the casts of an operand that are accepted, the likeliest first.

    [] if a plain or detached copy is accepted: then the dtype is not the reason.
    """
    if any(probe.accepts(changes={number: same}) for same in SAME):
        return []
    given = probe.call.operands[number].geometry.dtype
    names = [name for name, dtype in CASTS.items() if dtype != given]
    casts = [Change(f"{{}}.{name}()", methodcaller(name)) for name in names]
    return [cast for cast in casts if probe.accepts(changes={number: cast})]


def list_accepted_forms(probe: Probe, number: int) -> list[Change]:
    """Return other forms of an operand that are accepted, the likeliest first."""
    forms = list_forms(probe.call.operands, number)
    return [form for form in forms if probe.accepts(changes={number: form})]


def list_forms(operands: Sequence[Operand], number: int) -> Iterator[Change]:
    """Yield other forms of an operand, the likeliest first."""
    shape = operands[number].geometry.shape
    yield CONTIGUOUS
    yield from _turn(len(shape))
    yield from _add_dimensions(shape, operands)
    yield from _join_dimensions(shape)
    yield from _split_dimensions(shape, operands)
    for other in operands:
        if other is not operands[number] and WRITTEN.fullmatch(other.name):
            yield from _fit(shape, other)
    yield from _select(len(shape))
    if not operands[number].geometry.dtype.is_floating_point:
        yield from _encode(operands, number)


def _turn(rank: int) -> Iterator[Change]:
    """Yield other orders of dimensions."""
    for first, second in combinations(range(rank), 2):
        is_last = rank > MATRIX and (first, second) == (rank - 2, rank - 1)
        text = "transpose(-2, -1)" if is_last else f"transpose({first}, {second})"
        method = methodcaller("transpose", first, second)
        yield Change("{}.T" if rank == MATRIX else f"{{}}.{text}", method)
    if rank > MATRIX:
        *before, i, j, k = range(rank)
        for order in ([*before, k, i, j], [*before, j, k, i]):
            text = f"{{}}.permute({', '.join(map(str, order))})"
            yield Change(text, methodcaller("permute", order))


def _add_dimensions(
    shape: Sequence[int], operands: Sequence[Operand]
) -> Iterator[Change]:
    """Yield forms with more dimensions, of size 1.

    First those with most sizes where another operand has them.
    """
    rank = len(shape)
    others = [other.geometry.shape for other in operands]
    wider = [other for other in others if len(other) == rank + 1]

    def count_alike(dim: int) -> int:
        made = (*shape[:dim], 1, *shape[dim:])
        return max((sum(map(eq, made, other)) for other in wider), default=0)

    for dim in sorted(range(rank + 1), key=count_alike, reverse=True):
        yield Change(f"{{}}.unsqueeze({dim})", methodcaller("unsqueeze", dim))
    for n_more in (2, 3):
        index = (..., *[None] * n_more)
        yield Change(f"{{}}[...{', None' * n_more}]", itemgetter(index))
    yield Change("{}[None, None]", itemgetter((None, None)))


def _join_dimensions(shape: Sequence[int]) -> Iterator[Change]:
    """Yield forms with fewer dimensions and the same elements."""
    rank = len(shape)
    for dim in (dim for dim, size in enumerate(shape) if size == 1):
        yield Change(f"{{}}.squeeze({dim})", methodcaller("squeeze", dim))
    if rank > MATRIX:
        yield Change("{}.flatten(1)", methodcaller("flatten", 1))
        yield Change("{}.flatten(0, 1)", methodcaller("flatten", 0, 1))
    if rank > 1:
        yield Change("{}.flatten()", methodcaller("flatten"))
        yield Change("{}.reshape(1, -1)", methodcaller("reshape", 1, -1))


def _split_dimensions(
    shape: Sequence[int], operands: Sequence[Operand]
) -> Iterator[Change]:
    """Yield square images made of rows, with as many channels as another operand."""
    channels = {size for other in operands for size in other.geometry.shape[:2]}
    for n_channels in sorted(channels | {1, 3}) if len(shape) == MATRIX else ():
        side = isqrt(shape[1] // n_channels) if n_channels else 0
        if side > 1 and n_channels * side * side == shape[1]:
            sizes = -1, n_channels, side, side
            text = f"{{}}.view{sizes}"
            yield Change(text, methodcaller("view", *sizes))


def _fit(shape: Sequence[int], other: Operand) -> Iterator[Change]:
    """Yield forms that are as large as another operand."""
    name, sizes = other.name, other.geometry.shape
    n_more = len(sizes) - len(shape)
    if len(shape) > 1 and sizes and sizes[-1] == 2 * shape[-1]:  # half of a head
        times = *[1] * (len(shape) - 1), 2
        text = f"{{}}.repeat({', '.join(map(str, times))})"
        yield Change(text, methodcaller("repeat", *times))
    larger = [
        d for d, mine in enumerate(shape) if n_more >= 0 and mine > sizes[n_more + d]
    ]
    if len(larger) > 1:  # a mask of the longest sequence
        dims = range(larger[-1] + 1)
        ends = [f":{name}.shape[{n_more + d}]" if d in larger else ":" for d in dims]
        cut = tuple(slice(sizes[n_more + d]) if d in larger else ALL for d in dims)
        yield Change(f"{{}}[{', '.join(ends)}]", itemgetter(cut))
    if len(sizes) == len(shape):
        for dim, (mine, size) in enumerate(zip(shape, sizes, strict=True)):
            if mine > size:
                crop = (*[ALL] * dim, slice(size))
                text = f"[{':, ' * dim}:{name}.shape[{dim}]]"
                yield Change("{}" + text, itemgetter(crop))
        if len(shape) == IMAGE and shape[2:] != sizes[2:]:
            text = f"{FUNCTIONAL}.interpolate({{}}, size={name}.shape[2:])"
            yield Change(text, partial(functional.interpolate, size=sizes[2:]))
        wider = [dim for dim, mine in enumerate(shape) if mine == 1 != sizes[dim]]
        for one in wider if len(wider) > 1 else ():  # a class token for each sample
            texts = [
                f"{name}.shape[{d}]" if d == one else "-1" for d in range(len(shape))
            ]
            wanted = [sizes[d] if d == one else -1 for d in range(len(shape))]
            text = f"{{}}.expand({', '.join(texts)})"
            yield Change(text, methodcaller("expand", *wanted))
        yield Change(f"{{}}.expand_as({name})", methodcaller("expand", sizes))
    if len(sizes) == len(shape) + 1:
        text = f"{{}}.unsqueeze(1).expand_as({name})"
        yield Change(text, lambda t: t.unsqueeze(1).expand(sizes))
    if prod(sizes) == prod(shape):
        yield Change(f"{{}}.view_as({name})", methodcaller("view", sizes))


FUNCTIONAL: Final = "torch.nn.functional"


def _select(rank: int) -> Iterator[Change]:
    """Yield parts with one dimension less."""
    indexes: list[tuple[str, Any]] = [("0", 0)]
    if rank > 1:
        indexes += [(":, 0", (ALL, 0)), ("..., 0", (..., 0)), (":, -1", (ALL, -1))]
    for text, index in indexes if rank else ():
        yield Change(f"{{}}[{text}]", itemgetter(index))
    if rank == IMAGE:
        yield Change("{}.mean((2, 3))", methodcaller("mean", (2, 3)))


def _encode(operands: Sequence[Operand], number: int) -> Iterator[Change]:
    """Yield class numbers as one-hot rows."""
    others = [other for at, other in enumerate(operands) if at != number]
    for other in others:
        for n_classes in other.geometry.shape[-1:]:
            text = f"{FUNCTIONAL}.one_hot({{}}, {n_classes})"
            yield Change(text, partial(_one_hot, n_classes, torch.int64))
            make = partial(_one_hot, n_classes, torch.float32)
            yield Change(f"{text}.float()", make)


def _one_hot(n_classes: int, dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Return a tensor with the shape of one-hot rows; its values do not matter."""
    return tensor.new_zeros((*tensor.shape, n_classes), dtype=dtype)


MAX_NUMBERS: Final = 40

SECONDS: Final = 0.25
"""Processor time for trying numbers, and again for trying changes."""


class Accepting(NamedTuple):
    """Changes of operands with which a call is accepted.

    Attributes:
        changes: (operand, text) with ``{}`` for the operand.
        is_as_large: Whether no broadcast makes the result larger than all operands.
        keeps_shape: Whether the result has the shape of the only changed operand.
    """

    changes: tuple[tuple[int, str], ...]
    is_as_large: bool = True
    keeps_shape: bool = False


class Accepted(NamedTuple):
    """What a failed call accepts.

    Attributes:
        numbers: (number, accepted number), each pair once; the likeliest first.
        is_sure: Whether a rule gives the changes, as for the layout of a loss of
            classes: no others are tried.
    """

    numbers: tuple[tuple[int, int], ...] = ()
    changes: tuple[Accepting, ...] = ()
    is_sure: bool = False


def find_accepted(probe: Probe, written: Collection[int]) -> Accepted:
    """Return what a failed call accepts for the operands that are ``written``."""
    if probe.accepts():
        return Accepted()
    layouts = [_judge(probe, dict(changes)) for changes in list_layouts(probe)]
    if layouts:
        return Accepted(changes=tuple(layouts), is_sure=True)
    end = process_time() + SECONDS
    units = chain(((variable,) for variable in probe.values), probe.list_groups())
    found = (
        (probe.values[unit[0]], size)
        for unit in units
        for size in probe.find_values(*unit)
    )
    numbers = dict.fromkeys(takewhile(lambda _: process_time() < end, found))
    known = {*probe.values.values()}
    # The nearest value for each number is first, and what only broadcasts last.
    nearest = sorted(numbers, key=lambda pair: (pair[0], _measure_ratio(*pair)))
    grouped = groupby(nearest, itemgetter(0))
    turns = {pair: at for _, pairs in grouped for at, pair in enumerate(pairs)}
    ordered = sorted(
        numbers, key=lambda pair: (pair[1] == 1, turns[pair], pair[1] not in known)
    )
    probe.limit(SECONDS)  # anew: the numbers of an LSTM may have taken all of it
    changes = [*_walk_changes(probe, sorted(written))]
    return Accepted(tuple(ordered[:MAX_NUMBERS]), tuple(changes))


def _measure_ratio(before: int, after: int) -> float:
    """Return how far a number is from another, as a factor of at least 1."""
    least, most = sorted((abs(before), abs(after)))
    return most / least if least else inf


def _walk_changes(probe: Probe, written: Sequence[int]) -> Iterator[Accepting]:
    """Yield changes of single operands."""
    for number in written:
        casts = list_accepted_casts(probe, number)
        for change in (*casts, *list_accepted_forms(probe, number)):
            yield _judge(probe, {number: change})
        for dim, size in enumerate(probe.call.operands[number].geometry.shape):
            for cut in probe.find_values(Variable(number, dim)):
                if 1 < cut < size:
                    yield Accepting(((number, f"{{}}[{':, ' * dim}:{cut}]"),))


def _judge(probe: Probe, changes: dict[int, Change]) -> Accepting:
    returned = probe.run(changes=changes) or ()
    texts = tuple((number, change.text) for number, change in changes.items())
    given = [operand.geometry.shape for operand in probe.call.operands]
    changed = [*given]
    for number, change in changes.items():
        made = torch.empty(given[number], device="meta")
        changed[number] = tuple(change.make(made).shape)
    return Accepting(
        changes=texts,
        is_as_large=_is_as_large({*given, *changed}, changed, returned),
        keeps_shape=returned[:1] == tuple(changed[n] for n in changes),
    )


def _is_as_large(
    known: Collection[tuple[int, ...]],
    given: Sequence[tuple[int, ...]],
    returned: Shapes,
) -> bool:
    if not returned or (returned[0] and returned[0] in known):
        return True
    try:
        joint = tuple(torch.broadcast_shapes(*given))
    except RuntimeError:
        return True
    # One number may be the loss of all pairs of rows.
    return joint != returned[0] if returned[0] else joint in known


LOSSES: Final = frozenset(
    (functional.cross_entropy, functional.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
)

SEQUENCE: Final = 3
"""Dimensions of the scores of sequences.

``F.cross_entropy(logits, targets)`` with (batch, time, classes) and (batch, time) is
the commonest failed call: the classes must be dimension 1. With other sizes any layout
is accepted, so the layouts that people mean are tried before any number.
"""


def list_layouts(probe: Probe) -> list[Mapping[int, Change]]:
    """Return the layouts of scores and targets that a loss of classes accepts."""
    layouts = _propose_layouts(probe.call) if is_class_loss(probe.call) else ()
    return [changes for changes in layouts if probe.accepts(changes=changes)]


def is_class_loss(call: FailedCall) -> bool:
    """Whether a call computes a loss of classes from scores and targets."""
    called = call.args[0] if call.function is call_module else call.function
    return len(call.operands) > 1 and called in LOSSES


def _propose_layouts(call: FailedCall) -> Iterator[Mapping[int, Change]]:
    scores, targets = (operand.geometry.shape for operand in call.operands[:2])
    rank = len(scores)
    merged = Change(
        f"{{}}.flatten(0, {rank - 2})", methodcaller("flatten", 0, rank - 2)
    )
    if rank < SEQUENCE:
        return
    if targets == scores[:-1]:
        text = "transpose(1, 2)" if rank == SEQUENCE else "movedim(-1, 1)"
        yield {0: Change(f"{{}}.{text}", methodcaller("movedim", -1, 1))}
        yield {0: merged, 1: Change("{}.flatten()", methodcaller("flatten"))}
    elif targets == (prod(scores[:-1]),):
        yield {0: merged}
