"""How much a call computes."""

from math import prod

from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.signature import Signature

__all__ = ["count_work"]


def count_work(signature: Signature) -> int:
    """Return the operations of a call; one for each element that it makes or writes."""
    written = [signature.inputs[i] for i in signature.writes]
    n_elements = sum(prod(g.shape) for g in (*signature.outputs, *written))
    return count_flops(signature) or n_elements
