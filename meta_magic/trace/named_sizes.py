"""Sizes that know their name: an integer that is written as ``3*D``.

A shape of such sizes is shown by name wherever a shape is shown, as text is made of a
size by ``str``. Everything else sees plain integers.
"""

from typing import Self


class NamedSize(int):
    """An integer with the formula that it has in the names of a block.

    Args:
        size: The integer.
        text: The formula; the number itself where it depends on no name.
    """

    text: str

    def __new__(cls, size: int, text: str) -> Self:
        """Return the integer with its formula."""
        made = super().__new__(cls, size)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NamedSize) and other.text != self.text:
            return False
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[type["NamedSize"], tuple[int, str]]:
        return NamedSize, (int(self), self.text)
