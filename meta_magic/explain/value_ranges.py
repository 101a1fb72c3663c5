"""An index that is out of range: ``words[0, 2]`` is 11, and 0 to 10 are allowed.

The recording says which value the CPU refuses. Here the size is found that sets the
limit, such as the rows of an embedding, and the size that the values ask for.
"""

from typing import NamedTuple

from meta_magic.explain.class_losses import is_class_loss
from meta_magic.explain.probing import Variable
from meta_magic.trace.failed_call import FailedCall


class ValueRange(NamedTuple):
    """A value that is out of range.

    Attributes:
        rule: The value and the size that limits it, in a sentence.
        limit: The size; None if no operand has it.
        needed: The size that all values ask for; None if one is negative.
    """

    rule: str
    limit: Variable | None = None
    needed: int | None = None


def find_value_range(failed: FailedCall) -> ValueRange | None:
    """Return which value a call refused, if that is what it refused."""
    wrong = failed.wrong_value
    if wrong is None or type(wrong.value) is not int or type(wrong.high) is not int:
        return None
    high, value = wrong.high, wrong.value
    shapes = [operand.geometry.shape for operand in failed.operands]
    are_floats = [one.geometry.dtype.is_floating_point for one in failed.operands]
    named = [
        one.name
        for one, is_float in zip(failed.operands, are_floats, strict=True)
        if not is_float
    ]
    name = named[0] if len(named) == 1 else "an index"
    is_named = name.replace("_", "").replace(".", "").isalnum()
    shown = str(wrong) if is_named else str(wrong._replace(at=()))
    name = name if is_named else f"a value of {name}"
    limits = [
        Variable(number, dim)
        for number, (shape, is_float) in enumerate(zip(shapes, are_floats, strict=True))
        for dim, size in enumerate(shape)
        if size == high + 1 and is_float
    ]
    rule = f"{name}{shown}: 0 to {high} are allowed"
    if is_class_loss(failed):
        limits = [limit for limit in limits if limit.at == 1] or limits[-1:]
    if not limits:
        return ValueRange(rule)
    operand = failed.operands[limits[0].operand].name
    rule = f"{rule} by dimension {limits[0].at} of {operand} ({high + 1})"
    needed = int(max(wrong.largest, value)) + 1
    return ValueRange(rule, limits[0], needed if value >= 0 else None)
