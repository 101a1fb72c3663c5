"""Rules: which operands hold positions, classes or probabilities, and their bounds.

Without this ``weight[torch.tensor([99])]`` of ten rows would be recorded, and the CPU
would raise an ``IndexError``. ``NAMES`` is the table; ``find_allowed`` reads it.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import inf, prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from meta_magic.trace.signature import Signature, TensorArgument

MASKS: Final = frozenset({torch.bool, torch.uint8})


class Allowed(NamedTuple):
    """The values that one operand may have; the operator refuses others.

    Attributes:
        position: The number of the operand among the inputs.
        name: The name of the operand in the schema.
        low: The least allowed value.
        high: The greatest allowed value.
        spared: One more allowed value, such as ``ignore_index``; None if there is none.
        is_count: Whether the bounds are for the number of true elements.
        is_first: Whether the bounds are for the first element only.
    """

    position: int
    name: str
    low: float
    high: float
    spared: int | None = None
    is_count: bool = False
    is_first: bool = False

    def has(self, low: float, high: float) -> bool:
        """Whether all values between two bounds are allowed.

        If a bound is ``spared``, it is the only value on its side.
        """
        if self.is_first:
            return low <= self.high and self.low <= high
        is_low = self.low <= low or low == self.spared
        return is_low and (high <= self.high or high == self.spared)


class Operands:
    """The arguments of a signature, by their names in the schema."""

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self._given = dict(signature.arguments)

    def find(self, name: str, default: Any = None) -> Any:
        """Return an argument, or its default."""
        return self._given.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; ``(1,)`` for a tensor without dimensions."""
        return self._inputs[self._given[name].index].shape or (1,)  # type: ignore[attr-defined]  # a tensor's

    def allow(
        self, name: str, high: float, low: float = 0, spared: int | None = None
    ) -> Iterator[Allowed]:
        """Yield the bounds of an operand, if it is given."""
        operand = self._given.get(name)
        if isinstance(operand, TensorArgument):
            yield Allowed(operand.index, name, low, high, spared)

    def find_positions(self) -> Iterator[Allowed]:
        """Yield the bounds of ``indices``, one tensor for each dimension.

        A mask counts as so many tensors as it has dimensions.
        """
        shape, at = self.shape("self"), 0
        for part in self.find("indices", ()):
            geometry = self._inputs[part.index] if part is not None else None
            if geometry is not None and geometry.dtype in MASKS:
                at += len(geometry.shape)
                continue
            if geometry is not None and at < len(shape):
                n = shape[at]
                yield Allowed(part.index, f"indices[{at}]", -n, n - 1)
            at += 1

    def find_count(self) -> Iterator[Allowed]:
        """Yield the number of true elements of a mask that ``values`` must have."""
        parts = self.find("indices", ())
        at = [i for i, part in enumerate(parts) if part is not None]
        mask = self._inputs[parts[at[0]].index] if len(at) == 1 else None
        if mask is None or mask.dtype not in MASKS:
            return
        n_after = len(self.shape("self")) - len(mask.shape) - at[0]
        *_, n = (1, *self.shape("values")[: -n_after or None])
        if n != 1:
            yield Allowed(parts[at[0]].index, "indices", n, n, is_count=True)


Rule = Callable[[Operands], Iterator[Allowed]]


def among_written(given: Operands) -> Iterator[Allowed]:
    """Bound positions that are written, and the number of elements of a mask."""
    return chain(given.find_positions(), given.find_count())


def along_dim(given: Operands) -> Iterator[Allowed]:
    """Bound positions along a dimension; negative ones are refused."""
    return given.allow("index", given.shape("self")[given.find("dim", 0)] - 1)


def along_dim_and_back(given: Operands) -> Iterator[Allowed]:
    """Bound positions along a dimension; negative ones count from its end."""
    n = given.shape("self")[given.find("dim", 0)]
    return given.allow("index", n - 1, low=-n)


def among_all(given: Operands) -> Iterator[Allowed]:
    """Bound positions among all elements."""
    n = prod(given.shape("self"))
    return given.allow("index", n - 1, low=-n)


def among_rows(given: Operands) -> Iterator[Allowed]:
    """Bound the rows of an embedding, and the offsets of its bags."""
    rows = given.allow("indices", given.shape("weight")[0] - 1)
    if given.find("offsets") is None:
        return rows
    ends = given.allow("offsets", prod(given.shape("indices")))
    first = (a._replace(is_first=True) for a in given.allow("offsets", 0))
    return chain(rows, ends, first)


def among_rows_and_back(given: Operands) -> Iterator[Allowed]:
    """Bound the rows of an embedding; negative ones count from its end."""
    n = given.shape("self")[0]
    return given.allow("indices", n - 1, low=-n)


def among_classes(given: Operands) -> Iterator[Allowed]:
    """Bound classes; ``ignore_index`` is allowed as well."""
    n_classes = (*given.shape("self")[:2],)[-1]
    spared = given.find("ignore_index", -100)
    return given.allow("target", n_classes - 1, spared=spared)


def among_scores(given: Operands) -> Iterator[Allowed]:
    """Bound classes of which none is ignored."""
    return given.allow("target", given.shape("self")[-1] - 1)


def among_scores_or_none(given: Operands) -> Iterator[Allowed]:
    """Bound classes of a list that ends with -1."""
    return given.allow("target", given.shape("self")[-1] - 1, low=-1)


def among_unpooled(given: Operands) -> Iterator[Allowed]:
    """Bound positions in each plane of the output."""
    return given.allow("indices", prod(given.find("output_size", ())) - 1)


def of_weights(given: Operands) -> Iterator[Allowed]:
    """Bound weights and rates: not negative."""
    return given.allow("self", inf)


def of_probabilities(given: Operands) -> Iterator[Allowed]:
    """Bound probabilities."""
    return given.allow("p" if given.find("p") is not None else "self", 1)


def of_two_probabilities(given: Operands) -> Iterator[Allowed]:
    """Bound probabilities of the input and the target."""
    return chain(given.allow("self", 1), given.allow("target", 1))


def of_deviations(given: Operands) -> Iterator[Allowed]:
    """Bound standard deviations: not negative."""
    return given.allow("std", inf)


def of_true_ones(given: Operands) -> Iterator[Allowed]:
    """Bound the number of true elements of a mask."""
    n_each = prod(given.shape("self")) // max(1, prod(given.shape("mask")))
    most = prod(given.shape("source")) // max(1, n_each)
    return (a._replace(is_count=True) for a in given.allow("mask", most))


def of_errors(given: Operands) -> Iterator[Allowed]:
    """Bound the status of LAPACK: 0 says that no matrix is singular."""
    return given.allow("info", 0)


NAMES: Final[Mapping[Rule, str]] = MappingProxyType(
    {
        along_dim: "gather scatter scatter_add scatter_reduce index_select index_add "
        "index_copy index_reduce",
        along_dim_and_back: "index_fill",
        among_all: "take put",
        Operands.find_positions: "index unsafe_index",
        among_written: "index_put index_put_impl unsafe_index_put",
        among_rows: "embedding embedding_bag embedding_bag_forward_only",
        among_rows_and_back: "embedding_renorm",
        among_classes: "nll_loss_forward nll_loss2d_forward",
        among_scores: "multi_margin_loss",
        among_scores_or_none: "multilabel_margin_loss_forward",
        among_unpooled: "max_unpool2d max_unpool3d",
        of_weights: "multinomial poisson",
        of_probabilities: "bernoulli",
        of_two_probabilities: "binary_cross_entropy",
        of_deviations: "normal",
        of_true_ones: "masked_scatter",
        of_errors: "linalg_check_errors",
    }
)
RULES: Final = {name: rule for rule, names in NAMES.items() for name in names.split()}
"""By the operator's name without its overload and outer underscores.

Source:
    Errors of torch 2.13 on the CPU, which ``tests/unit/recording/signatures`` raise.
"""


def find_allowed(signature: Signature) -> tuple[Allowed, ...]:
    """Return the bounds of the operands of a signature."""
    library, name, *_ = signature.op.split(".")
    rule = RULES.get(name.strip("_")) if library == "aten" else None
    return () if rule is None else tuple(rule(Operands(signature)))
