"""Count the calls that something makes: the same number on every machine, every time.

Python's own profiler counts; its times are not looked at.
"""

import cProfile
import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

import meta_magic

PACKAGE: Final = Path(meta_magic.__file__).parent

ASKED_ONCE: Final = frozenset({"<frozen abc>", "<frozen _collections_abc>"})
"""Files that are not counted: ``isinstance`` of an abstract class asks them for each
class once, and anew when any class was registered meanwhile."""

COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
"""Calls in Python 3.11, and none from 3.12 on."""


class Place(NamedTuple):
    """What makes calls.

    Attributes:
        file: Below the folder that it is imported from.
        function: Qualified name, for a function of meta_magic. Of others the files
            alone are told apart, and this is empty.
        is_builtin: Whether it is not the function's calls that are counted, but the
            calls of functions written in C that it makes.
    """

    file: str
    function: str
    is_builtin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The calls made while something ran.

    Attributes:
        n_own: Of meta_magic's Python functions, without comprehensions.
        n_builtin: Of functions written in C, by these.
        n_total: Of all Python functions, torch's and the model's among them.
        n_by_place: The same calls by what was called, or made them.
    """

    n_own: int
    n_builtin: int
    n_total: int
    n_by_place: Mapping[Place, int]


def count_calls(run: Callable[[], object]) -> Count:
    """Run something and count its calls.

    Garbage that lies in circles is collected before, and not while it runs: when the
    collector comes depends on all that the process has made.
    """
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()
    try:
        profile.runcall(run)
    finally:
        gc.enable()
    return build_count(profile)


def build_count(profile: cProfile.Profile) -> Count:
    """Add up what a profiler saw."""
    n_own = n_total = 0
    n_by_place: Counter[Place] = Counter()
    for entry in profile.getstats():
        code = entry.code
        if not isinstance(code, CodeType):
            continue  # a builtin: counted where it is called from
        if code.co_filename in ASKED_ONCE:
            continue
        is_own = Path(code.co_filename).is_relative_to(PACKAGE)
        n_total += entry.callcount
        if is_own:
            n_by_place[builtins_of(code)] += sum(
                callee.callcount
                for callee in entry.calls or ()
                if not isinstance(callee.code, CodeType)
            )
        if not is_own or code.co_name not in COMPREHENSIONS:
            n_own += entry.callcount if is_own else 0
            n_by_place[place_of(code, is_own)] += entry.callcount
    return Count(
        n_own=n_own,
        n_builtin=sum(n for place, n in n_by_place.items() if place.is_builtin),
        n_total=n_total,
        n_by_place=n_by_place,
    )


def place_of(code: CodeType, is_own: bool) -> Place:
    """Return where the calls of a function are counted."""
    function = code.co_qualname if is_own else ""
    return Place(relative_name(code.co_filename), function, is_builtin=False)


def builtins_of(code: CodeType) -> Place:
    """Return where the calls that a function of meta_magic makes are counted.

    Those of a comprehension are calls of the function around it.
    """
    function = code.co_qualname
    if code.co_name in COMPREHENSIONS:
        function = function.removesuffix(f".<locals>.{code.co_name}")
    return Place(relative_name(code.co_filename), function, is_builtin=True)


def relative_name(file: str) -> str:
    """Return a file's path below the folder that it is imported from."""
    folders = [
        folder
        for folder in (PACKAGE.parent.as_posix(), *sys.path)
        if folder and file.startswith(f"{folder}/")
    ]
    return file.removeprefix(f"{max(folders, key=len)}/") if folders else file
