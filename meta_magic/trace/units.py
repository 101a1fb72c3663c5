"""Numbers as text: ``1.5 GiB`` are 1.5 * 2**30 bytes, ``70.6 B`` are 70.6 * 10**9.

A :class:`NamedSize` is shown by the names of a block.
"""

from collections.abc import Sequence
from typing import Final, Self

BINARY: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL: Final = ("", "K", "M", "B", "T")
FLOPS: Final = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs", "EFLOPs")


def format_bytes(nbytes: int) -> str:
    """Return bytes in the largest binary unit, such as ``1.5 GiB``."""
    return "1 byte" if nbytes == 1 else scale(nbytes, 1024, BINARY)


def format_count(count: int) -> str:
    """Return a count with a decimal suffix, such as ``70.6 B``; exact below 1000."""
    return scale(count, 1000, DECIMAL).rstrip()


def format_flops(flops: int) -> str:
    """Return floating-point operations in the largest decimal unit."""
    return scale(flops, 1000, FLOPS)


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as Python writes a tuple of sizes."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def format_line(line: int | None) -> str:
    """Return the beginning of a sentence on a line of code; "" for no line."""
    return f"line {line}: " if line else ""


def scale(number: int, base: int, units: Sequence[str]) -> str:
    """Return ``number`` in the largest unit that is not larger than it."""
    value, unit = float(number), 0
    # 1023.96 KiB would be rounded to 1024.0 KiB: it is shown as 1.0 MiB.
    while value >= base - (0.05 if unit else 0) and unit < len(units) - 1:
        value /= base
        unit += 1
    digits = f"{number:,}" if unit == 0 else f"{value:,.1f}"
    return f"{digits} {units[unit]}"


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


MAX_LINE: Final = 1_000
"""The most characters of a line of an error's message that are shown."""


def cut_lines(text: str) -> str:
    """Return a text without the end of its very long lines.

    A message of torch about tensors on two meshes has a line of 86,000 characters.
    """
    return "\n".join(
        line
        if len(line) <= MAX_LINE
        else f"{line[:MAX_LINE]}... (and {len(line) - MAX_LINE:,} characters)"
        for line in text.split("\n")
    )
