"""What people do to a tensor that is refused: cast it, turn it, give it a dimension."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from math import isqrt, prod
from operator import itemgetter, methodcaller
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from meta_magic.explain.probing import Change, Probe
from meta_magic.trace.failed_call import Operand

__all__ = [
    "list_accepted_casts",
    "list_accepted_forms",
    "list_casts",
    "list_forms",
    "turn",
]

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

COPY: Final = Change("{}.clone()", methodcaller("clone"))

WRITTEN: Final = re.compile(r"[\w.\[\]]+")
"""Names that can stand in a program."""


def list_accepted_casts(probe: Probe, number: int) -> list[Change]:
    """Return the casts of an operand that are accepted, the likeliest first.

    None where a copy is accepted: then its dtype is none of the reasons.
    """
    if any(is_accepted(probe, number, same) for same in (COPY, CONTIGUOUS)):
        return []
    casts = list_casts(probe.call.operands[number])
    return [cast for cast in casts if is_accepted(probe, number, cast)]


def list_accepted_forms(probe: Probe, number: int) -> list[Change]:
    """Return other forms of an operand that are accepted, the likeliest first."""
    forms = list_forms(probe.call.operands, number)
    return [form for form in forms if is_accepted(probe, number, form)]


def is_accepted(probe: Probe, number: int, change: Change) -> bool:
    """Whether a call accepts a change of an operand."""
    return probe.run(changes={number: change}) is not None


def list_casts(operand: Operand) -> Iterator[Change]:
    """Yield casts to other dtypes."""
    for name, dtype in CASTS.items():
        if dtype != operand.geometry.dtype:
            yield Change(f"{{}}.{name}()", methodcaller(name))


def list_forms(operands: Sequence[Operand], number: int) -> Iterator[Change]:
    """Yield other forms of an operand, the likeliest first."""
    shape = operands[number].geometry.shape
    yield CONTIGUOUS
    yield from turn(len(shape))
    yield from add_dimensions(len(shape))
    yield from join_dimensions(shape)
    yield from split_dimensions(shape, operands)
    for other in operands:
        if other is not operands[number] and WRITTEN.fullmatch(other.name):
            yield from fit(shape, other)
    yield from select(len(shape))
    if not operands[number].geometry.dtype.is_floating_point:
        yield from encode(operands, number)


def turn(rank: int) -> Iterator[Change]:
    """Yield other orders of dimensions."""
    for first, second in combinations(range(rank), 2):
        is_last = rank > MATRIX and (first, second) == (rank - 2, rank - 1)
        text = "transpose(-2, -1)" if is_last else f"transpose({first}, {second})"
        method = methodcaller("transpose", first, second)
        yield Change("{}.T" if rank == MATRIX else f"{{}}.{text}", method)
    if rank > MATRIX:
        dims = list(range(rank))
        for order in (
            [*dims[:-3], *dims[-1:], *dims[-3:-1]],
            [*dims[:-3], *dims[-2:], dims[-3]],
        ):
            text = f"{{}}.permute({', '.join(map(str, order))})"
            yield Change(text, methodcaller("permute", order))


def add_dimensions(rank: int) -> Iterator[Change]:
    """Yield dimensions of size 1 that are added."""
    for dim in range(rank + 1):
        yield Change(f"{{}}.unsqueeze({dim})", methodcaller("unsqueeze", dim))
    for n_more in (2, 3):
        index = (..., *[None] * n_more)
        yield Change(f"{{}}[...{', None' * n_more}]", itemgetter(index))
    yield Change("{}[None, None]", itemgetter((None, None)))


def join_dimensions(shape: Sequence[int]) -> Iterator[Change]:
    """Yield forms with fewer dimensions, of the same elements."""
    rank = len(shape)
    for dim in (dim for dim, size in enumerate(shape) if size == 1):
        yield Change(f"{{}}.squeeze({dim})", methodcaller("squeeze", dim))
    if rank > MATRIX:
        yield Change("{}.flatten(1)", methodcaller("flatten", 1))
        yield Change("{}.flatten(0, 1)", methodcaller("flatten", 0, 1))
    if rank > 1:
        yield Change("{}.flatten()", methodcaller("flatten"))


def split_dimensions(
    shape: Sequence[int], operands: Sequence[Operand]
) -> Iterator[Change]:
    """Yield square images of rows, with as many channels as another operand has."""
    channels = {size for other in operands for size in other.geometry.shape[:2]}
    for n_channels in sorted(channels | {1, 3}) if len(shape) == MATRIX else ():
        side = isqrt(shape[1] // n_channels) if n_channels else 0
        if side > 1 and n_channels * side * side == shape[1]:
            sizes = -1, n_channels, side, side
            text = f"{{}}.view{sizes}"
            yield Change(text, methodcaller("view", *sizes))


def fit(shape: Sequence[int], other: Operand) -> Iterator[Change]:
    """Yield forms that are as large as another operand."""
    name, sizes = other.name, other.geometry.shape
    if len(sizes) == len(shape):
        for dim, (mine, size) in enumerate(zip(shape, sizes, strict=True)):
            if mine > size:
                crop = (*[ALL] * dim, slice(size))
                text = f"[{':, ' * dim}:{name}.shape[{dim}]]"
                yield Change("{}" + text, itemgetter(crop))
        if len(shape) == IMAGE and shape[2:] != sizes[2:]:
            text = f"{FUNCTIONAL}.interpolate({{}}, size={name}.shape[2:])"
            yield Change(text, resize_to(sizes[2:]))
        yield Change(f"{{}}.expand_as({name})", methodcaller("expand", sizes))
    if len(sizes) == len(shape) + 1:
        text = f"{{}}.unsqueeze(1).expand_as({name})"
        yield Change(text, lambda t: t.unsqueeze(1).expand(sizes))
    if prod(sizes) == prod(shape):
        yield Change(f"{{}}.view_as({name})", methodcaller("view", sizes))


FUNCTIONAL: Final = "torch.nn.functional"


def resize_to(sizes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return what resizes images."""
    return lambda tensor: functional.interpolate(tensor, size=sizes)


def select(rank: int) -> Iterator[Change]:
    """Yield parts of a tensor that are smaller by a dimension."""
    indexes: list[tuple[str, Any]] = [("0", 0)]
    if rank > 1:
        indexes += [(":, 0", (ALL, 0)), ("..., 0", (..., 0)), (":, -1", (ALL, -1))]
    for text, index in indexes if rank else ():
        yield Change(f"{{}}[{text}]", itemgetter(index))
    if rank == IMAGE:
        yield Change("{}.mean((2, 3))", methodcaller("mean", (2, 3)))


def encode(operands: Sequence[Operand], number: int) -> Iterator[Change]:
    """Yield the class numbers of an operand as rows of zeros and a one."""
    others = [other for at, other in enumerate(operands) if at != number]
    for other in others:
        for n_classes in other.geometry.shape[-1:]:
            text = f"{FUNCTIONAL}.one_hot({{}}, {n_classes})"
            yield Change(text, partial(one_hot, n_classes, torch.int64))
            make = partial(one_hot, n_classes, torch.float32)
            yield Change(f"{text}.float()", make)


def one_hot(n_classes: int, dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Return what has a row for each class number; the values do not matter."""
    return tensor.new_zeros((*tensor.shape, n_classes), dtype=dtype)
