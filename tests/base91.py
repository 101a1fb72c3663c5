"""Reads what ``meta_magic/view/page.py`` writes, as the browser does."""

from meta_magic.view.page import DIGITS


def read_base91(text, n_bytes):
    """Return the bytes of a text."""
    pairs = zip(text[::2], text[1::2], strict=True)
    values = [DIGITS.index(high) * 91 + DIGITS.index(low) for high, low in pairs]
    bits = "".join(f"{value:013b}" for value in values)
    return bytes(int(bits[8 * at : 8 * at + 8], 2) for at in range(n_bytes))
