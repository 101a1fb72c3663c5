"""Bytes as text in a notebook: 13 bits in each two of 91 characters.

Of all that one byte can write in a file, they are those that neither JSON nor HTML
escapes. It takes a twelfth less than base64, which has 12 bits in two characters.
``static/starter.js`` is the reader.
"""

from typing import Final

__all__ = ["DIGITS", "write_base91"]

DIGITS: Final = "".join(c for c in map(chr, range(32, 127)) if c not in "\"'<\\")

PAIRS: Final = tuple(high + low for high in DIGITS for low in DIGITS)
"""By what they stand for; a few of the last are never used."""

SHIFTS: Final = range(13 * 7, -1, -13)
"""Of the eight pairs that stand for thirteen bytes."""


def write_base91(data: bytes) -> str:
    """Return the text of some bytes."""
    padded = data + bytes(-len(data) % 13)
    chunks = (int.from_bytes(padded[at : at + 13]) for at in range(0, len(padded), 13))
    text = "".join([PAIRS[chunk >> n & 8191] for chunk in chunks for n in SHIFTS])
    return text[: 2 * -(-8 * len(data) // 13)]
