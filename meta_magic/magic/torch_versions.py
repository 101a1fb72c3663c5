"""With which versions of torch this was tested; known without importing it."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["describe_untested"]

NEWEST_TESTED: Final = (2, 15)
"""With the day in ``tests/conformance/RESULTS.md``."""


def describe_untested() -> str:
    """Return a line on a torch that is newer than all tested; "" if it is not."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return ""
    if tuple(map(int, installed.split(".")[:2])) <= NEWEST_TESTED:
        return ""
    newest = ".".join(map(str, NEWEST_TESTED))
    return f"meta_magic was tested with torch up to {newest}; this is {installed}."
