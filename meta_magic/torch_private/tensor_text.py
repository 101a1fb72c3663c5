"""What torch makes the text of a tensor from."""

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor, _tensor_str

__all__ = ["join_suffixes", "write_values"]

write_values: Final[Callable[[Tensor, int], str]] = _tensor_str._tensor_str
"""Return the values of a tensor as torch writes them, below a head of so many letters.
Without it no tensor on meta shows values."""


def join_suffixes(text: str, suffixes: Sequence[str], indent: int) -> str:
    """Return the text of a tensor: its head with what follows, in lines.

    Without it what is said after the values is broken into other lines than torch's.
    """
    joined: str = _tensor_str._add_suffixes(text, suffixes, indent, force_newline=False)
    return joined
