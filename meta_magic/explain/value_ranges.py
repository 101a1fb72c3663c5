"""The size that a value of an index exceeds: ``words[0, 2]`` is 11, of 0 to 10.

The recording says which value the CPU refuses. Here the size is found that sets the
limit, such as the rows of an embedding, and the size that the values ask for.
"""

import re
from typing import Final, NamedTuple

from meta_magic.explain.class_losses import is_class_loss
from meta_magic.explain.probing import Variable
from meta_magic.trace.failed_call import FailedCall

VALUE: Final = re.compile(
    r"\w+(?P<at>(?:\[[\d, ]+\])?) is (?P<value>-?\d+)"
    r"(?: \(the largest is (?P<most>\d+)\))?; allowed are -?\d+ to (?P<high>\d+)"
)
"""The recording's words for a value that is out of range."""


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
    found = VALUE.match(failed.wrong_value)
    if found is None:
        return None
    high, value = int(found["high"]), int(found["value"])
    shapes = [operand.geometry.shape for operand in failed.operands]
    are_floats = [one.geometry.dtype.is_floating_point for one in failed.operands]
    named = [
        one.name
        for one, is_float in zip(failed.operands, are_floats, strict=True)
        if not is_float
    ]
    name = named[0] if len(named) == 1 else "an index"
    is_named = name.replace("_", "").replace(".", "").isalnum()
    where = f"{name}{found['at']}" if is_named else f"a value of {name}"
    most = f" (the largest is {found['most']})" if found["most"] else ""
    limits = [
        Variable(number, dim)
        for number, (shape, is_float) in enumerate(zip(shapes, are_floats, strict=True))
        for dim, size in enumerate(shape)
        if size == high + 1 and is_float
    ]
    rule = f"{where} is {value}{most}: 0 to {high} are allowed"
    if is_class_loss(failed):
        limits = [limit for limit in limits if limit.at == 1] or limits[-1:]
    if not limits:
        return ValueRange(rule)
    operand = failed.operands[limits[0].operand].name
    rule = f"{rule} by dimension {limits[0].at} of {operand} ({high + 1})"
    needed = int(found["most"] or value) + 1
    return ValueRange(rule, limits[0], needed if value >= 0 else None)
