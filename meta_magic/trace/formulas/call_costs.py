"""What the record of a call says that it costs."""

from typing import TypedDict

from meta_magic.trace.formulas.operations import count_flops
from meta_magic.trace.formulas.traffic import count_traffic
from meta_magic.trace.signature import Signature

__all__ = ["CallCosts", "count_costs"]


class CallCosts(TypedDict):
    """The fields of an ``OpCall`` that follow from its signature by formulas.

    Attributes:
        flops: FLOPs of products, or None.
        nbytes_read: Bytes that it reads.
        nbytes_written: Bytes that it makes or writes.
    """

    flops: int | None
    nbytes_read: int
    nbytes_written: int


def count_costs(signature: Signature) -> CallCosts:
    """Return what one call of a signature costs."""
    read, written = count_traffic(signature)
    return {
        "flops": count_flops(signature),
        "nbytes_read": read,
        "nbytes_written": written,
    }
