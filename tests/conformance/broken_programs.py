"""Whether programs that are broken fail under ``record()`` as they do on the CPU.

``python -m tests.conformance.broken_programs FOLDER`` runs each program of a folder in
four ways, broken and mended, on the CPU and recorded: it prints how many broken ones
raise at the same line, the same type, the same text; and how many mended ones raise. A
program begins with a docstring whose ``fix:`` lists, below ``@N``, the lines from line
N on that are replaced (``- ``), and those in their place (``+ ``).
"""

import argparse
import datetime as dt
import linecache
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

import meta_magic as mm
from tests.conformance.apart import Crashed, run_apart

COLUMNS: Final = (
    "same",
    "other text",
    "other type",
    "other line",
    "accepted",
    "refused",
    "crashed",
)
HEADER: Final = re.compile(r'r"""(.*?)\n"""\n', re.DOTALL)
RUNS: Final = None


class Failure(NamedTuple):
    """What ended a program.

    Attributes:
        line: The innermost of the program's own lines.
        kind: The name of the error's type.
        text: Its text, without what was added as a note.
    """

    line: int
    kind: str
    text: str


class Case(NamedTuple):
    """A program, and what came of it.

    Attributes:
        name: Its file's name.
        is_broken: Whether it is the broken one of two.
        wanted: What ends it on the CPU.
        met: What ends it under ``record()``; how its process ended, if that crashed.
    """

    name: str
    is_broken: bool
    wanted: Failure | None
    met: Failure | str | None


def mend(text: str) -> str:
    """Return a program as its header says that it is to be.

    Raises:
        ValueError: A line to be replaced is not there.
    """
    header = HEADER.match(text)
    fix = header[1].partition("\nfix:\n")[2] if header is not None else ""
    lines = text.split("\n")
    hunks = re.findall(
        r"  @(\d+)\n((?:  - .*\n|  -\n)*)((?:  \+ .*\n?|  \+\n?)*)", fix + "\n"
    )
    for number, before, after in sorted(hunks, key=lambda hunk: -int(hunk[0])):
        removed, added = (
            [line[4:] for line in part.splitlines()] for part in (before, after)
        )
        start = int(number) - 1
        if lines[start : start + len(removed)] != removed:
            raise ValueError(f"line {number} is not {removed}")
        lines[start : start + len(removed)] = added
    return "\n".join(lines)


def run(text: str, context: AbstractContextManager[Any]) -> Failure | None:
    """Return what ends a program in a context."""
    name = "<program>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    torch.manual_seed(0)
    try:
        with redirect_stdout(StringIO()), context:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == name]
        return Failure((lines or [0])[-1] or 0, type(error).__name__, str(error))
    return RUNS


def check(path: Path) -> Iterator[Case]:
    """Yield what came of a program, broken and mended."""
    text = path.read_text(encoding="utf-8")
    for is_broken, version in ((True, text), (False, mend(text))):
        wanted = run_apart(lambda: run(version, nullcontext()))  # noqa: B023
        try:
            met = run_apart(lambda: run(version, mm.record(as_device="cpu")))  # noqa: B023
        except Crashed as error:
            met = str(error)
        yield Case(path.stem, is_broken, wanted, met)


def judge(case: Case) -> str:
    """Return in which of ``COLUMNS`` a case belongs, "" if it is to run and runs."""
    wanted, met = case.wanted, case.met
    if isinstance(met, str):
        return "crashed"
    if wanted is None or met is None:
        return "refused" if met else "accepted" if wanted else ""
    if met == wanted:
        return "same"
    if met.line != wanted.line:
        return "other line"
    return "other text" if met.kind == wanted.kind else "other type"


def main() -> None:
    """Print the table, and what is otherwise than on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", default=[""], help="in names of programs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with mm.record():  # what torch imports when first asked, before there are children
        torch.nn.functional.gelu(torch.ones(2)).sum()
    paths = sorted(options.folder.glob("*.py"))
    cases = []
    for path in paths:
        if any(word in path.stem for word in options.words):
            for case in check(path):
                cases.append(case)
                if judge(case) not in {"same", ""}:
                    print(f"- {judge(case)}: {case}", flush=True)
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"\n{day}, torch {torch.__version__}\n\n| | all | {' | '.join(COLUMNS)} |")
    print("|---|" + (len(COLUMNS) + 1) * "--:|")
    for title, is_broken in (("broken", True), ("mended", False)):
        own = [case for case in cases if case.is_broken is is_broken]
        counts = Counter(map(judge, own))
        shown = " | ".join(str(counts[column]) for column in COLUMNS)
        print(f"| {title} | {len(own)} | {shown} |")


if __name__ == "__main__":
    main()
