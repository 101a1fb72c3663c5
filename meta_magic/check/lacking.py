"""What a machine has not that a program, or the check itself, needs."""

from typing import Final

from meta_magic.trace.units import format_bytes

__all__ = ["describe_error", "find_lacking"]

LACKING: Final = ("NVIDIA driver", "not compiled with CUDA enabled")
NO_MEMORY: Final = ("can't allocate memory", "failed to map segment", "Cannot allocate")
"""What errors of torch, and of libraries in C, say of a machine."""


def describe_error(error: BaseException) -> str:
    """Return an error's type and text."""
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code!r}"
    text = str(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def find_lacking(error: BaseException, nbytes: int | None) -> str | None:
    """Return what this machine has not, or meta cannot do; None if it is not that."""
    text = str(error)
    is_full = isinstance(error, MemoryError)
    if is_full or any(words in text for words in NO_MEMORY):
        limit = "" if nbytes is None else f" than {format_bytes(nbytes)} (--memory)"
        return f"it needs more memory{limit}: {describe_error(error)}"
    is_of_meta = isinstance(error, NotImplementedError) and "meta" in text.lower()
    is_of_machine = any(words in text for words in LACKING)
    if is_of_meta or is_of_machine or isinstance(error, OSError):
        return f"it needs what is not here: {describe_error(error)}"
    return None
