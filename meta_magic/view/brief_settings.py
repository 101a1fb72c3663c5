"""A module's settings in short: without what its class has by default."""

import re
from collections.abc import Iterator
from typing import Final

from meta_magic.trace.modules import ModuleClass

__all__ = ["shorten_settings"]

NOTHING: Final = frozenset({"False", "None", "0", "0.0", "''"})
FRACTION: Final = re.compile(r"-?\d*\.?\d*(e-?\d+)?")


def shorten_settings(text: str, definition: ModuleClass | None) -> str:
    """Return the settings that tell a module from others of its class.

    Sizes, counts and what is on come first, then fractions. Of what no class tells in
    words of its own, plain attributes, that is left out which is off or nothing.
    """
    if definition is None:
        return " ".join(text.split())
    defaults = dict(reversed(definition.defaults))
    omitted = frozenset[str]() if definition.has_words else NOTHING
    early: list[str] = []
    late: list[str] = []
    for part in split_settings(text):
        name, _, value = part.rpartition("=")
        if name and (value in omitted or is_default(value, defaults.get(name))):
            continue
        is_fraction = name and not value.isdecimal() and FRACTION.fullmatch(value)
        (late if is_fraction else early).append(part.removesuffix("=True"))
    return ", ".join([*early, *late])


def is_default(value: str, default: str | None) -> bool:
    """Whether a value is the default, for each dimension where it has several."""
    if default is None:
        return False
    sizes = {size.strip() for size in value.strip("()").split(",") if size.strip()}
    return value == default or sizes == {default}


def split_settings(text: str) -> Iterator[str]:
    """Yield what stands between commas, but for those in brackets."""
    part, depth = "", 0
    for char in " ".join(text.split()):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            yield part
            part = ""
        else:
            part = (part + char).lstrip()
    if part:
        yield part
