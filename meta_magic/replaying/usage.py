"""How the calls of a signature use their tensors: worked out once for all of them."""

from collections.abc import Iterator
from functools import cached_property
from math import prod

from meta_magic.replaying.call_arguments import CallArguments
from meta_magic.replaying.operators import (
    GARBLING,
    GARBLING_IF_GROWN,
    KEEPING,
    Operator,
)
from meta_magic.replaying.work import count_work
from meta_magic.trace.signature import (
    Geometry,
    Signature,
    TensorArgument,
    span_nbytes,
)

__all__ = ["Usage", "geometry_after", "is_dense"]


class Usage:
    """What the calls of one signature read and write.

    Args:
        signature: What they share.
        operator: What they call.

    Attributes:
        signature: What they share.
        operator: What they call.
        overwritten: Indices of the arguments whose elements are all written, none read.
        read: Indices of the arguments whose content is read.
        garbled: Indices of the ``out=`` arguments that are resized, of an operator that
            computes garbage from memory that it resizes.
    """

    def __init__(self, signature: Signature, operator: Operator) -> None:
        self.signature = signature
        self.operator = operator
        self.overwritten = find_overwritten(signature, operator)
        skipped = self.overwritten | operator.unread
        n_read = 0 if operator.reads_metadata else len(signature.inputs)
        self.read = tuple(index for index in range(n_read) if index not in skipped)
        self.garbled = frozenset(
            index
            for index in self.overwritten
            if is_garbled(operator.name, signature, index)
        )
        self._nbytes_by_dense = {
            index: span_nbytes(geometry)
            for index in self.overwritten
            if is_dense(geometry := geometry_after(signature, index))
        }

    @cached_property
    def arguments(self) -> CallArguments:
        """What a call is given."""
        return CallArguments(self.signature)

    @cached_property
    def work(self) -> int:
        """How much a call computes."""
        return count_work(self.signature)

    def fills(self, index: int, nbytes: int) -> bool:
        """Whether an argument that is overwritten has as many bytes, and no gaps."""
        return self._nbytes_by_dense.get(index) == nbytes


def find_overwritten(signature: Signature, operator: Operator) -> frozenset[int]:
    """Return the arguments all of whose elements are written, and none read."""
    if operator.is_fill:
        return frozenset({0})
    if operator.name in KEEPING:
        return frozenset()
    out = [value for name, value in signature.arguments if name in operator.out]
    return frozenset({*list_indices(out)} & {*signature.writes})


def is_garbled(name: str, signature: Signature, index: int) -> bool:
    """Whether an operator computes garbage of an ``out=`` that it reads as well."""
    before, after = signature.inputs[index].shape, signature.outputs[:1]
    if name in GARBLING_IF_GROWN:
        return prod(after[0].shape) > prod(before)
    return name in GARBLING and after[0].shape != before


def list_indices(value: object) -> Iterator[int]:
    """Yield the indices of the tensors in an argument, or in lists of some."""
    if isinstance(value, TensorArgument):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from list_indices(item)


def geometry_after(signature: Signature, index: int) -> Geometry:
    """Return what an argument is like after a call, which may resize ``out=``."""
    after = dict(zip(signature.views, signature.outputs, strict=True))
    return after.get(index, signature.inputs[index])


def is_dense(geometry: Geometry) -> bool:
    """Whether a tensor's elements fill a stretch of memory, each its own place."""
    if geometry.stride is None:
        return False
    wanted = 1
    pairs = zip(geometry.stride, geometry.shape, strict=True)
    for step, size in sorted(pair for pair in pairs if pair[1] != 1):
        if step != wanted:
            return False
        wanted *= size
    return geometry.storage_offset == 0
