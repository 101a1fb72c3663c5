"""Compare the results of an answer with those of the solution.

Numbers that are wrong are compared with changes of the right ones: a table of what
learners confuse, such as a view for a transpose, a sum for a mean or a mask that is
inverted. Read :func:`find_faults` first, and ``DIFFERENCES``.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.teach.answer_runs import OtherResult, TensorResult, read_values
from meta_magic.trace.units import format_shape

Fault: TypeAlias = tuple[float, str]
"""The points that a wrong result has nevertheless, and what is wrong."""

is_near: Final = partial(torch.allclose, rtol=1e-4, atol=1e-5, equal_nan=True)


def find_faults(name: str, mine: Any, right: Any, view: bool | None) -> Iterator[Fault]:  # noqa: FBT001  three states
    """Yield what is wrong with one result; later faults follow from the first.

    Args:
        name: What the result is called.
        mine: The learner's, as ``read_result`` gives it; so is ``right``.
        view: Whether it must be a view of what is given; None if it may be.
    """
    if isinstance(right, TensorResult):
        if isinstance(mine, TensorResult):
            yield from compare_tensors(name, mine, right, view)
        else:
            yield 0.0, f"{name} is {name_type(mine)}, and no tensor"
    elif isinstance(right, tuple | list) and type(mine) is type(right):
        if len(mine) != len(right):
            yield 0.0, f"{name} has {len(mine)} parts, and {len(right)} are wanted"
        for at, pair in enumerate(zip(mine, right, strict=False)):
            yield from find_faults(f"{name}[{at}]", *pair, view)
    elif type(mine) is not type(right) or mine != right:
        shown = name_type(mine) if isinstance(mine, tuple) else repr(mine)
        yield 0.0, f"{name} is {shown}, and {right!r} is wanted"


def name_type(result: Any) -> str:
    """Return the name of the type of a result."""
    if isinstance(result, OtherResult):
        return result.type
    return "Tensor" if isinstance(result, TensorResult) else type(result).__name__


def compare_tensors(
    name: str,
    mine: TensorResult,
    right: TensorResult,
    view: bool | None,  # noqa: FBT001  three states
) -> Iterator[Fault]:
    """Yield what is wrong with a tensor; see :func:`find_faults`."""
    if mine.kind != right.kind:
        yield 0.0, f"{name} is {mine.kind}, and {right.kind} is wanted"
        return
    if mine.shape != right.shape:
        shapes = f"{format_shape(mine.shape)}, and {format_shape(right.shape)}"
        kind = describe_shape(mine.shape, right.shape)
        yield 0.0, f"{name} is {shapes} is wanted: {kind}"
        return
    if mine.values is None or right.values is None:  # on meta, or sparse
        yield 0.0, f"{name} has no numbers that can be compared"
        return
    difference = describe_values(read_values(mine), read_values(right))
    if difference:
        yield 0.25, f"{name} has the right shape, and other numbers: {difference}"
    if mine.dtype != right.dtype:
        yield 0.75, f"{name} is {mine.dtype}, and {right.dtype} is wanted"
    if mine.requires_grad and not right.requires_grad:
        yield 0.75, f"{name} requires a gradient, so its whole graph stays in memory"
    if view is not None and mine.is_view != view:
        kinds = "a copy, and a view" if view else "a view, and a copy"
        yield 0.75, f"{name} has the right numbers, but it is {kinds} is wanted"


def describe_shape(mine: tuple[int, ...], right: tuple[int, ...]) -> str:
    """Return the kind of a wrong shape: rank, order or size."""
    if len(mine) != len(right):
        plural = "" if len(right) == 1 else "s"
        return f"it has {len(right)} dimension{plural}, not {len(mine)}"
    if sorted(mine) == sorted(right):
        return "the sizes are right, their order is not"
    wrong = [d for d in range(len(mine)) if mine[d] != right[d]]
    dims = " and ".join(map(str, wrong))
    if len(wrong) == 1:
        return f"dimension {dims} has another size"
    return f"dimensions {dims} have other sizes"


def find_order(a: Tensor, b: Tensor) -> str:
    """Look for the right numbers in another order."""
    for dims in permutations(range(a.ndim)):
        turned = b.permute(dims)
        if turned.shape == a.shape and is_near(turned, a):
            moved = [d for d, other in enumerate(dims) if d != other]
            if len(moved) == 2:  # noqa: PLR2004  a pair
                return f"its dimensions {moved[0]} and {moved[1]} are exchanged"
            return "its dimensions are in another order"
    for dim, size in enumerate(a.shape):
        if is_near(a, b.flip(dim)):
            return f"the right ones, backwards along dimension {dim}"
        if size <= 2:  # noqa: PLR2004  a pair is turned
            continue
        later, sooner = (
            [x.narrow(dim, start, size - 1) for x, start in ((a, one), (b, 1 - one))]
            for one in (1, 0)
        )
        if is_near(*later) or is_near(*sooner):
            return f"the right ones, shifted by one along dimension {dim}"
    if not a.is_complex() and is_near(a.flatten().sort()[0], b.flatten().sort()[0]):
        return "the same ones in another order"
    return ""


def find_scale(a: Tensor, b: Tensor) -> str:
    """Look for a constant factor or difference."""
    if not (a.isfinite() & b.isfinite()).all():
        return ""
    step, used = (a - b).flatten(), b != 0
    if used.any() and not a.is_complex() and is_near(a[~used], b[~used]):
        ratio = a[used] / b[used]
        factor = float(ratio[0])
        if is_near(ratio, ratio[0].expand_as(ratio)):
            return describe_factor(factor, is_sure=ratio.numel() > 1)
    if a.numel() > 1 and is_near(step, step[0].expand_as(step)):
        return f"each is {step[0].real:+.4g} off"
    return ""


def describe_factor(factor: float, *, is_sure: bool) -> str:
    """Return what a constant factor between wrong and right numbers says.

    Args:
        is_sure: Whether several numbers have it; of one, only whole ones are said.
    """
    if math.isclose(factor, -1, rel_tol=1e-4):
        return "the right ones with the other sign"
    parts = (factor, 1 / factor) if factor else ()
    is_whole = any(math.isclose(n, round(n), rel_tol=1e-4) for n in parts)
    return f"{factor:.4g} times what is wanted" if is_sure or is_whole else ""


FUNCTIONS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("square roots", torch.sqrt),
    ("squares", torch.square),
    ("exponentials", torch.exp),
    ("logarithms", torch.log),
    ("reciprocals", torch.reciprocal),
    ("amounts without the sign", torch.abs),
)


def find_function(a: Tensor, b: Tensor) -> str:
    """Look for a function of the right numbers, or for numbers that it makes right."""
    if not a.isfinite().all() or a.is_complex():
        return ""
    for name, function in FUNCTIONS:
        if is_near(a, function(b)):
            return f"the {name} of the right ones"
    return ""


def find_mask(a: Tensor, b: Tensor) -> str:
    """Look for a mask that sets other elements, or sets them to another number."""
    wrong = ~torch.isclose(a, b, 1e-4, 1e-5, equal_nan=True)
    n_wrong = int(wrong.sum())
    if n_wrong < 2 or a.is_complex():  # noqa: PLR2004  one number is always constant
        return ""
    mine, right = find_constant(a[wrong]), find_constant(b[wrong])
    if mine and right:
        return f"{mine} stands where {right} is wanted"
    constants = (
        (mine, right) for right in list_repeated(b) for mine in list_repeated(a)
    )
    for one, other in constants:
        is_set, should_be = a == one, b == other
        same = ~(is_set | should_be)
        if not (is_set & should_be).any() and is_near(a[same], b[same]):
            wanted = "" if one == other else f", and {other:g} is wanted"
            return f"{one:g} stands where it should not: a mask is inverted{wanted}"
    if mine:
        return f"{n_wrong} are {mine}, and should not be"
    return f"{n_wrong} should be {right}, and are not" if right else ""


def find_constant(values: Tensor) -> str:
    """Return the number that all elements are, as text; "" if they differ."""
    is_one = is_near(values, values[:1].expand_as(values))
    return f"{values[0] + 0.0:g}" if is_one else ""  # no -0


def list_repeated(values: Tensor) -> list[float]:
    """Return the numbers that most elements are, if several are."""
    found, counts = values.unique(return_counts=True)
    most = counts.argsort(descending=True)[:3]
    return [float(found[n]) + 0.0 for n in most if counts[n] > 1]  # no -0


DIFFERENCES: Final = (find_order, find_scale, find_function, find_mask)
"""Each looks for one kind of change by which right numbers become a learner's."""


def describe_values(a: Tensor, b: Tensor) -> str:
    """Return how numbers of the right shape are wrong; "" if they are right."""
    if a.is_complex() != b.is_complex():
        a, b = a.to(torch.complex128), b.to(torch.complex128)
    if is_near(a, b):
        return ""
    for find in DIFFERENCES:
        text = find(a, b)
        if text:
            return text
    wrong = (~torch.isclose(a, b, 1e-4, 1e-5, equal_nan=True)).nonzero()
    first = tuple(wrong[0].tolist())
    if not first:
        return f"{a:.4g} for {b:.4g}"
    at = ", ".join(map(str, first))
    values = f"{a[first]:.4g} for {b[first]:.4g}"
    return f"{len(wrong)} of {a.numel()} are wrong; the first, at [{at}], is {values}"
