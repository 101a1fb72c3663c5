"""What is to be checked: a script, a notebook, or a function of a module."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from meta_magic.errors import CheckError

__all__ = ["Subject", "read_subject"]

Kind: TypeAlias = Literal["script", "notebook", "function"]

FUNCTION: Final = re.compile(r"(?P<home>.+):(?P<function>[^\W\d]\w*(\.[^\W\d]\w*)*)")
MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be checked.

    Attributes:
        name: As the command line has it.
        kind: What it is.
        path: Its file, in full; None for a function of a module that is imported.
        module: That module; "" for all others.
        function: Qualified name of the function; "" for all others.
    """

    name: str
    kind: Kind
    path: Path | None = None
    module: str = ""
    function: str = ""


def read_subject(text: str) -> Subject:
    """Return what an argument of the command line names.

    Args:
        text: The path of a script or notebook, ``pkg.module:function``, or
            ``path/to/file.py:function``.

    Raises:
        CheckError: It is none of these, or is not there.
    """
    path = Path(text)
    if path.is_file():
        kind: Kind = "notebook" if path.suffix == ".ipynb" else "script"
        return Subject(name=text, kind=kind, path=path.resolve())
    if path.is_dir():
        raise CheckError("it is a folder; name scripts, notebooks or functions")
    found = FUNCTION.fullmatch(text)
    if found is None:
        raise CheckError(
            "there is no such file; a function is named as pkg.module:function"
        )
    home, function = Path(found["home"]), found["function"]
    if home.is_file():
        file = home.resolve()
        return Subject(name=text, kind="function", path=file, function=function)
    if not MODULE.fullmatch(found["home"]):
        raise CheckError(f"there is no file {found['home']!r}")
    return Subject(name=text, kind="function", module=found["home"], function=function)
