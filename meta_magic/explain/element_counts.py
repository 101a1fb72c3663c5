"""Why a tensor cannot be seen in another shape: its elements, or how they lie.

One of the few families with words of their own: no other size tells that it is the
product that counts.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from meta_magic.explain.edits.operand_changes import CONTIGUOUS
from meta_magic.explain.probing import Probe

__all__ = ["tell_counts"]

RESHAPING: Final = frozenset({"view", "reshape"})


def tell_counts(probe: Probe) -> Iterator[str]:
    """Yield why a view or a reshape has no such shape; nothing of other calls."""
    call = probe.call
    is_reshaping = getattr(probe.function, "__name__", "") in RESHAPING
    if not (is_reshaping and len(call.operands) == 1):
        return
    operand = call.operands[0]
    shape = operand.geometry.shape
    wanted = [n for v, n in probe.values.items() if not v.is_size]
    n_elements, fixed = prod(shape), prod(n for n in wanted if n != -1)
    if probe.run(changes={0: CONTIGUOUS}) is not None:
        strides = f"{operand.name} has strides {operand.geometry.stride}"
        yield f"{strides}, which allow no such view; {operand.name}.reshape() copies"
        return
    is_whole = n_elements == fixed if -1 not in wanted else n_elements % fixed == 0
    if wanted and fixed > 0 and not is_whole:
        asked = " x ".join(map(str, wanted)) + tell_rest(wanted, n_elements)
        yield f"{write_product(shape)} elements cannot be {asked}"


def write_product(shape: tuple[int, ...]) -> str:
    """Return sizes as what they come to: ``8 * 16 = 128``."""
    written = " * ".join(map(str, shape))
    return f"{written} = {prod(shape):,}" if len(shape) > 1 else f"{prod(shape):,}"


def tell_rest(wanted: list[int], n_elements: int) -> str:
    """Return what -1 in the place of one size would be, where it can stand."""
    found = []
    for at, size in enumerate(wanted):
        rest = prod(n for other, n in enumerate(wanted) if other != at)
        if size != -1 and -1 not in wanted and rest > 0 and n_elements % rest == 0:
            found.append(f"in the place of {size} -1 would be {n_elements // rest}")
    return "".join(f"; {one}" for one in found[-1:])
