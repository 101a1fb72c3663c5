"""Decide whether an error is the program's own.

A missing package, a missing file or too little memory says nothing about the program:
:func:`find_reason` then returns why the program cannot be checked.
"""

import importlib.util
import linecache
from typing import Final

from meta_magic.check.records import Request
from meta_magic.errors import MetaMagicError
from meta_magic.trace.units import format_bytes
from meta_magic.trials.sandbox import Refused

USAGE: Final = 2
"""The exit code of programs whose arguments are wrong."""


def find_reason(error: BaseException, request: Request) -> str | None:
    """Return why an error is not the program's own; None if it is."""
    if isinstance(error, (MetaMagicError, Refused)) or is_of_ipython(error):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return f"it took more than {request.seconds:g} s (--timeout)"
    if isinstance(error, ModuleNotFoundError):
        if not error.name and error.__cause__ is not None:  # as transformers raises it
            return find_reason(error.__cause__, request)
        return find_missing_package(error.name)
    return find_expected_input(error) or find_lacking_resource(error, request.nbytes)


def find_missing_package(name: str | None) -> str | None:
    """Return which package is not installed; None if the package is there."""
    package = (name or "").partition(".")[0]
    try:
        is_here = not package or importlib.util.find_spec(package) is not None
    except ValueError:  # it is half imported
        is_here = True
    return None if is_here else f"it needs {package!r}, which is not installed"


def find_expected_input(error: BaseException) -> str | None:
    """Return what a program expects of its user: arguments or input."""
    if isinstance(error, SystemExit) and error.code == USAGE:
        return "it does not take its arguments (exit code 2); give others after --"
    if isinstance(error, IndexError) and is_of_arguments(error):
        return f"it needs arguments; give them after -- ({error})"
    if isinstance(error, EOFError):
        return f"it asks for input, and here is none: {error}"
    return None


def is_of_arguments(error: IndexError) -> bool:
    """Whether the line that raised reads ``sys.argv``."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    line = linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno)
    return "argv" in line


def is_of_ipython(error: BaseException) -> bool:
    """Whether IPython reports an unknown magic, or wrong use of one."""
    return type(error).__name__ == "UsageError"


LACKING: Final = ("NVIDIA driver", "not compiled with CUDA enabled")
NO_MEMORY: Final = ("can't allocate memory", "failed to map segment", "Cannot allocate")
"""Messages of torch, and of libraries in C, that blame the machine."""


def describe_error(error: BaseException) -> str:
    """Return an error's type and text."""
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code!r}"
    text = str(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def find_lacking_resource(error: BaseException, nbytes: int | None) -> str | None:
    """Return what this machine, or the meta device, lacks; None if nothing."""
    text = str(error)
    is_full = isinstance(error, MemoryError)
    if is_full or any(message in text for message in NO_MEMORY):
        limit = "" if nbytes is None else f" than {format_bytes(nbytes)} (--memory)"
        return f"it needs more memory{limit}: {describe_error(error)}"
    is_of_meta = isinstance(error, NotImplementedError) and "meta" in text.lower()
    is_of_machine = any(message in text for message in LACKING)
    if is_of_meta or is_of_machine or isinstance(error, OSError):
        return f"it needs what is not here: {describe_error(error)}"
    return None
