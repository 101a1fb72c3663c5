"""Rules: which operands hold positions, classes or probabilities, and their bounds.

Without this ``weight[torch.tensor([99])]`` of ten rows would be recorded, and the CPU
would raise an ``IndexError``. ``ROWS`` is the table; ``find_allowed`` reads it.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf, prod
from typing import Any, Final, NamedTuple

import torch

from meta_magic.trace.signature import Signature, TensorArgument

MASKS: Final = frozenset({torch.bool, torch.uint8})


class Allowed(NamedTuple):
    """The values that one operand may have; the operator refuses others.

    Attributes:
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
        """Whether all values between two bounds, or the ``spared`` one, are allowed."""
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

    def allow_back(self, name: str, n: int) -> Iterator[Allowed]:
        """Yield the bounds of positions among ``n``, negative ones among them."""
        return self.allow(name, n - 1, low=-n)

    def find_positions(self) -> Iterator[Allowed]:
        """Yield the bounds of ``indices``, one tensor for each dimension."""
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


def n_along(given: Operands) -> int:
    """Return the size of the dimension along which positions are."""
    return int(given.shape("self")[given.find("dim", 0)])


def among_rows(given: Operands) -> Iterator[Allowed]:
    """Bound the rows of an embedding, and the offsets of its bags."""
    rows = given.allow("indices", given.shape("weight")[0] - 1)
    if given.find("offsets") is None:
        return rows
    ends = given.allow("offsets", prod(given.shape("indices")))
    first = (a._replace(is_first=True) for a in given.allow("offsets", 0))
    return chain(rows, ends, first)


def among_classes(given: Operands) -> Iterator[Allowed]:
    """Bound classes; ``ignore_index`` is allowed as well."""
    n_classes = (*given.shape("self")[:2],)[-1]
    spared = given.find("ignore_index", -100)
    return given.allow("target", n_classes - 1, spared=spared)


def of_true_ones(given: Operands) -> Iterator[Allowed]:
    """Bound the number of true elements of a mask."""
    n_each = prod(given.shape("self")) // max(1, prod(given.shape("mask")))
    most = prod(given.shape("source")) // max(1, n_each)
    return (a._replace(is_count=True) for a in given.allow("mask", most))


ROWS: Final[tuple[tuple[str, Rule], ...]] = (
    # Positions along a dimension; negative ones are refused, or count from its end.
    (
        (
            "gather scatter scatter_add scatter_reduce "
            "index_select index_add index_copy index_reduce"
        ),
        lambda given: given.allow("index", n_along(given) - 1),
    ),
    ("index_fill", lambda given: given.allow_back("index", n_along(given))),
    # Positions among all elements, rows, or the elements of a plane of the output.
    ("take put", lambda given: given.allow_back("index", prod(given.shape("self")))),
    (
        "embedding_renorm",
        lambda given: given.allow_back("indices", given.shape("self")[0]),
    ),
    ("embedding embedding_bag embedding_bag_forward_only", among_rows),
    (
        "max_unpool2d max_unpool3d",
        lambda given: given.allow("indices", prod(given.find("output_size", ())) - 1),
    ),
    ("index unsafe_index", Operands.find_positions),
    (
        "index_put index_put_impl unsafe_index_put",
        lambda given: chain(given.find_positions(), given.find_count()),
    ),
    ("nll_loss_forward nll_loss2d_forward", among_classes),
    (
        "multi_margin_loss",
        lambda given: given.allow("target", given.shape("self")[-1] - 1),
    ),
    (
        "multilabel_margin_loss_forward",  # a list of classes ends with -1
        lambda given: given.allow("target", given.shape("self")[-1] - 1, low=-1),
    ),
    ("multinomial poisson", lambda given: given.allow("self", inf)),
    (
        "bernoulli",
        lambda given: given.allow("self" if given.find("p") is None else "p", 1),
    ),
    (
        "binary_cross_entropy",
        lambda given: chain(given.allow("self", 1), given.allow("target", 1)),
    ),
    ("normal", lambda given: given.allow("std", inf)),
    ("masked_scatter", of_true_ones),
    # The status of LAPACK: 0 says that no matrix is singular.
    ("linalg_check_errors", lambda given: given.allow("info", 0)),
)
RULES: Final = {name: rule for names, rule in ROWS for name in names.split()}
"""By the operator's name without its overload and outer underscores.

Source:
    Errors of torch 2.13 on the CPU, which ``tests/unit/recording/signatures`` raise.
"""


def find_allowed(signature: Signature) -> tuple[Allowed, ...]:
    """Return the bounds of the operands of a signature."""
    library, name, *_ = signature.op.split(".")
    rule = RULES.get(name.strip("_")) if library == "aten" else None
    return () if rule is None else tuple(rule(Operands(signature)))
