"""Which refusals speak of values: with other ones the call might run."""

import re
from typing import Final

from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public

__all__ = ["speaks_of_types", "speaks_of_values"]

OF_VALUES: Final = re.compile(
    r"index out of range in self|target -?\d+ is out of bounds|"
    r"out of bounds for dimension \d+ with size|index -?\d+ is out of|"
    r"can't allocate|not enough memory|singular|converge|"
    r"positive-definite|pivots [^.]*between|internal assert|u\[|"
    r"probability tensor|probabilities|offsets\[|sum to|class values must|"
    r"all elements of (input|target)",
    re.IGNORECASE,
)
"""What only values, or the memory of this machine, can have said."""

OF_MASKS: Final = re.compile("indexing result of shape|indexing tensors could not")
"""What may be about the elements that a mask chooses, as many as the words say."""

LIKE_VALUES: Final = re.compile(
    r"out of range|out of bounds|not positive|non-?negative|negative|\binf\b|nan\b|"
    r"must be (in|between|>|<)|between|monoton|sum of|offsets|lengths|"
    r"expected to be sorted|number of (non-?zero|true)|rank|ill-condition|illegal|"
    r"division by zero|diagonal|numerator|infinite|indptr|invariant|"
    r"could not run|max must|min and max",
    re.IGNORECASE,
)
"""What may be about values."""

OF_TYPES: Final = re.compile("scalar type|same type|dtype|not implemented for")
"""What no value decides."""

OF_METADATA: Final = re.compile(
    r"single memory location|padding|dimension out of range|selected number|"
    r"selected index|expected .* dtype|same dtype|scalar type|shape|size|dimension|"
    r"dim\(\)|implemented for|dtype|\b(from|to - 1) is out of bounds",
    re.IGNORECASE,
)
"""What is about metadata all the same."""


def speaks_of_types(error: BaseException) -> bool:
    """Whether an operator refused types, as it would with any values."""
    return bool(OF_TYPES.search(str(error))) and not speaks_of_values(error)


def speaks_of_values(error: BaseException, *, is_tried: bool = False) -> bool:
    """Whether an operator that was given made-up values refused them, perhaps.

    Args:
        error: What it said.
        is_tried: Whether it says so whatever it is given.
    """
    if isinstance(error, (LinAlgError, MemoryError)):
        return True
    text = str(error)
    if OF_VALUES.search(text) or (OF_MASKS.search(text) and not is_tried):
        return True
    return bool(LIKE_VALUES.search(text)) and not OF_METADATA.search(text)
