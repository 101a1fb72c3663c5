"""Which operands of operators are positions or classes, and what these may be."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import inf, prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from meta_magic.trace.signature import Signature, TensorArgument

MASKS: Final = frozenset({torch.bool, torch.uint8})


class Allowed(NamedTuple):
    """What the values of one operand may be: else an operator refuses them.

    Attributes:
        position: Which of the operator's inputs it is.
        name: How the operator calls it.
        low: The least of them.
        high: The greatest of them.
        spared: A value that is allowed all the same; None if there is none.
        is_count: Whether that is said of how many elements are true.
        is_first: Whether that is said of the first element alone.
    """

    position: int
    name: str
    low: float
    high: float
    spared: int | None = None
    is_count: bool = False
    is_first: bool = False

    def has(self, low: float, high: float) -> bool:
        """Whether values that lie between two may all be allowed.

        Bounds of which one is spared say that of it alone.
        """
        if self.is_first:
            return low <= self.high and self.low <= high
        is_low = self.low <= low or low == self.spared
        return is_low and (high <= self.high or high == self.spared)


class Operands:
    """The arguments that an operator's calls of one signature have in common.

    Args:
        signature: The signature.
    """

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self._given = dict(signature.arguments)

    def find(self, name: str, default: Any = None) -> Any:
        """Return an argument; what it is if it is not given."""
        return self._given.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; one element stands for a number."""
        return self._inputs[self._given[name].index].shape or (1,)  # type: ignore[attr-defined]  # a tensor's

    def allow(
        self, name: str, high: float, low: float = 0, spared: int | None = None
    ) -> Iterator[Allowed]:
        """Yield what an operand may hold, if it is given."""
        operand = self._given.get(name)
        if isinstance(operand, TensorArgument):
            yield Allowed(operand.index, name, low, high, spared)

    def find_positions(self) -> Iterator[Allowed]:
        """Yield what the positions may be of which there are some for each dimension.

        A mask stands for those of all its dimensions.
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
        """Yield how many elements of a mask are true if a value is given for each."""
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
    """Yield what positions may be that are written, and how many a mask chooses."""
    return chain(given.find_positions(), given.find_count())


def along_dim(given: Operands) -> Iterator[Allowed]:
    """Yield what positions along a dimension may be, none counted from its end."""
    return given.allow("index", given.shape("self")[given.find("dim", 0)] - 1)


def along_dim_and_back(given: Operands) -> Iterator[Allowed]:
    """Yield what positions along a dimension may be, some counted from its end."""
    n = given.shape("self")[given.find("dim", 0)]
    return given.allow("index", n - 1, low=-n)


def among_all(given: Operands) -> Iterator[Allowed]:
    """Yield what positions among all elements may be."""
    n = prod(given.shape("self"))
    return given.allow("index", n - 1, low=-n)


def among_rows(given: Operands) -> Iterator[Allowed]:
    """Yield what positions in a table may be, and where its bags may begin."""
    rows = given.allow("indices", given.shape("weight")[0] - 1)
    if given.find("offsets") is None:
        return rows
    ends = given.allow("offsets", prod(given.shape("indices")))
    first = (a._replace(is_first=True) for a in given.allow("offsets", 0))
    return chain(rows, ends, first)


def among_rows_and_back(given: Operands) -> Iterator[Allowed]:
    """Yield what positions in a table may be, some counted from its end."""
    n = given.shape("self")[0]
    return given.allow("indices", n - 1, low=-n)


def among_classes(given: Operands) -> Iterator[Allowed]:
    """Yield what classes may be."""
    n_classes = (*given.shape("self")[:2],)[-1]
    spared = given.find("ignore_index", -100)
    return given.allow("target", n_classes - 1, spared=spared)


def among_scores(given: Operands) -> Iterator[Allowed]:
    """Yield what classes may be, of which none is ignored."""
    return given.allow("target", given.shape("self")[-1] - 1)


def among_scores_or_none(given: Operands) -> Iterator[Allowed]:
    """Yield what classes may be that end with -1."""
    return given.allow("target", given.shape("self")[-1] - 1, low=-1)


def among_unpooled(given: Operands) -> Iterator[Allowed]:
    """Yield what positions in each plane that is made may be."""
    return given.allow("indices", prod(given.find("output_size", ())) - 1)


def of_weights(given: Operands) -> Iterator[Allowed]:
    """Yield what probabilities may be that are not scaled, and rates."""
    return given.allow("self", inf)


def of_probabilities(given: Operands) -> Iterator[Allowed]:
    """Yield what probabilities may be."""
    return given.allow("p" if given.find("p") is not None else "self", 1)


def of_two_probabilities(given: Operands) -> Iterator[Allowed]:
    """Yield what probabilities may be that are met, and that are wanted."""
    return chain(given.allow("self", 1), given.allow("target", 1))


def of_deviations(given: Operands) -> Iterator[Allowed]:
    """Yield what standard deviations may be."""
    return given.allow("std", inf)


def of_true_ones(given: Operands) -> Iterator[Allowed]:
    """Yield how many elements of a mask may be true."""
    n_each = prod(given.shape("self")) // max(1, prod(given.shape("mask")))
    most = prod(given.shape("source")) // max(1, n_each)
    return (a._replace(is_count=True) for a in given.allow("mask", most))


def of_errors(given: Operands) -> Iterator[Allowed]:
    """Yield what LAPACK reports of matrices that are not singular."""
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
"""By name, without overload and underscores around it.

Source:
    What each raises on the CPU, torch 2.13: ``tests/unit/recording/signatures``.
"""


def find_allowed(signature: Signature) -> tuple[Allowed, ...]:
    """Return what the values may be that calls of a signature read."""
    library, name, *_ = signature.op.split(".")
    rule = RULES.get(name.strip("_")) if library == "aten" else None
    return () if rule is None else tuple(rule(Operands(signature)))
