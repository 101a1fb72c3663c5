"""Why an error is not the program's own: what it needs is not here, or not known."""

import importlib.util
import linecache
from typing import Final

from meta_magic.check.lacking import find_lacking
from meta_magic.check.verdicts import Request
from meta_magic.errors import MetaMagicError
from meta_magic.trials.sandbox import Refused

__all__ = ["find_reason", "is_of_ipython"]

USAGE: Final = 2
"""The exit code by which programs say that their arguments were wrong."""


def find_reason(error: BaseException, request: Request) -> str | None:
    """Return why an error is not the program's own; None if it is."""
    if isinstance(error, (MetaMagicError, Refused)) or is_of_ipython(error):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return f"it took more than {request.seconds:g} s (--timeout)"
    if isinstance(error, ModuleNotFoundError):
        return find_missing(error.name)
    return find_asked(error) or find_lacking(error, request.nbytes)


def find_missing(name: str | None) -> str | None:
    """Return which package is not installed; None if a module of one is not there."""
    package = (name or "").partition(".")[0]
    try:
        is_here = importlib.util.find_spec(package) is not None
    except ValueError:  # it has no name, or is half imported
        is_here = True
    return None if is_here else f"it needs {package!r}, which is not installed"


def find_asked(error: BaseException) -> str | None:
    """Return what a program asks of who runs it; None if it is not that."""
    if isinstance(error, SystemExit) and error.code == USAGE:
        return "it does not take its arguments (exit code 2); give others after --"
    if isinstance(error, IndexError) and is_of_arguments(error):
        return f"it needs arguments; give them after -- ({error})"
    if isinstance(error, EOFError):
        return f"it asks for input, and here is none: {error}"
    return None


def is_of_arguments(error: IndexError) -> bool:
    """Whether a program looked for an argument that it was not given."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    line = linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno)
    return "argv" in line


def is_of_ipython(error: BaseException) -> bool:
    """Whether IPython says that a magic is not there, or is used otherwise."""
    return type(error).__name__ == "UsageError"
