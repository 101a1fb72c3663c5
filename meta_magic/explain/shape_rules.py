"""Which shapes a failed call asks for, where no single size is wrong."""

from collections.abc import Iterator, Sequence
from typing import Final

from torch import Tensor

from meta_magic.explain.probing import Change, Probe, Variable
from meta_magic.trace.failed_call import Operand
from meta_magic.trace.units import format_shape

__all__ = ["tell_shapes"]

MAX_RANK: Final = 5

MAX_OPERANDS: Final = 6
"""How many operands are put beside each other."""


def tell_shapes(probe: Probe) -> Iterator[str]:
    """Yield which shapes are asked for: as others have, or of other lengths."""
    found = [*relate_columns(probe)] or [*relate_shapes(probe)]
    yield from found or tell_ranks(probe)


def relate_columns(probe: Probe) -> Iterator[str]:
    """Yield which dimension of all operands has to be equal, as where they join."""
    operands = probe.call.operands
    rank = min((len(o.geometry.shape) for o in operands), default=0)
    for dim in range(rank if len(operands) > 2 else 0):  # noqa: PLR2004  two are a pair
        column = [Variable(number, dim) for number, _ in enumerate(operands)]
        equal = dict.fromkeys(column, probe.values[column[0]])
        if probe.accepts(equal):
            words = ", ".join(map(probe.label, column[:MAX_OPERANDS]))
            yield f"{words} must be equal"


def relate_shapes(probe: Probe) -> Iterator[str]:
    """Yield which operand has to have the shape of another one."""
    operands = probe.call.operands[:MAX_OPERANDS]
    for number, operand in enumerate(operands):
        for other in operands:
            shape, own = other.geometry.shape, operand.geometry.shape
            grown = (*shape[:-1], shape[-1] + 1) if shape else (2,)
            is_taken = shape != own and has_shape(probe, [number], shape)
            if is_taken and not has_shape(probe, [number], grown):
                wanted = f"the shape of {other.name}, {format_shape(shape)}"
                yield f"{operand.name} {format_shape(own)} must have {wanted}"


def tell_ranks(probe: Probe) -> Iterator[str]:
    """Yield how many dimensions operands have, and how many are accepted."""
    for group in list_groups(probe.call.operands):
        ranks = [n for n in range(MAX_RANK + 1) if is_rank(probe, group, n)]
        if ranks:
            operands = [probe.call.operands[number] for number in group]
            rank = len(operands[0].geometry.shape)
            names = ", ".join(operand.name for operand in operands[:MAX_OPERANDS])
            has = "has" if len(group) == 1 else "have"
            plural = "" if rank == 1 else "s"
            words = " or ".join(map(str, ranks))
            are = "is" if ranks == [1] else "are"
            yield f"{names} {has} {rank} dimension{plural}: {words} {are} accepted"


def list_groups(operands: Sequence[Operand]) -> list[list[int]]:
    """Return the operands, each alone, then all that are of one rank together."""
    alone = [[number] for number, _ in enumerate(operands)][:MAX_OPERANDS]
    ranks = [len(operand.geometry.shape) for operand in operands]
    together = [
        [number for number, other in enumerate(ranks) if other == rank]
        for rank in dict.fromkeys(ranks)
    ]
    return alone + [group for group in together if len(group) > 1]


def is_rank(probe: Probe, numbers: Sequence[int], rank: int) -> bool:
    """Whether operands are accepted with so many dimensions."""
    shape = probe.call.operands[numbers[0]].geometry.shape
    n_more = rank - len(shape)
    if n_more == 0:
        return False
    if n_more > 0:
        shapes = {(*shape, *[1] * n_more), (*[1] * n_more, *shape)}
    else:
        shapes = {shape[:rank], shape[-n_more:]}
    return any(has_shape(probe, numbers, one) for one in shapes)


def has_shape(probe: Probe, numbers: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether operands are accepted in another shape."""

    def make(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(tuple(shape)).requires_grad_(tensor.requires_grad)

    change = Change(f"{{}} {tuple(shape)}", make)
    return probe.run(changes=dict.fromkeys(numbers, change)) is not None
