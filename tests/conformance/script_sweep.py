"""How many cells of notebooks and scripts run and print the same under ``%%meta``.

``python -m tests.conformance.script_sweep PATH...`` runs every notebook and script
below a folder twice, each time in a process of its own with limits: for real, and with
``%%meta`` in front of each cell. A cell that fails for real is not counted.
"""

import argparse
import datetime as dt
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import meta_magic as mm
from tests.conformance.script_cells import find_files, read_cells
from tests.conformance.script_runs import (
    CRASHED,
    LATE,
    Limits,
    Outcome,
    Script,
    run_cells,
)

SAME, WITHOUT_VALUES, UNSTABLE, OTHER = "same", "without values", "unstable", "other"

NUMBER = r"\d[\d.,]*(?:e[-+]?\d+)?"
UNIT = r"(?:[mnuµ]?s|secs?|seconds?|mins?|minutes?|h|hours?|it/s|s/it)"
TOOK = r"(?:time|took|elapsed|ms/\w+|/sec)"
DEVICE = r"device=\\?'[\w:]+\\?'"
FACT = rf"(?:{DEVICE}|size=\([\d, ]*\)|dtype=[\w.]+|grad_fn=<\w+>|requires_grad=\w+)"
RULES = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"/tmp/tmp\w+/copy"), "."),
    (re.compile(r"\s+"), " "),
    (re.compile(rf"(?:, {FACT})+"), ""),
    (re.compile(r"\bOut\[\d+\]:\s*"), ""),
    (re.compile(r"\btorch\.meta\.(?=\w+Tensor\b)"), "torch."),
    (re.compile(r"\bmeta\b"), "cpu"),
    (re.compile(rf"{NUMBER}\s?{UNIT}\b"), "TIME"),
    (re.compile(rf"{NUMBER} loops? each"), "TIME"),
    (re.compile(r'"'), "'"),  # Python chooses them by what stands between
    (re.compile(rf"(?i)({TOOK}[a-z ]*(?:\([^)]*\))?[\s:=|]*){NUMBER}"), r"\1TIME"),
    (re.compile(r"\d+:\d\d(?::\d\d)?(?:\.\d+)?"), "TIME"),
)
UNKNOWN = "tensor(...)"
"""A tensor that does not show its values."""


def normalize(text: str) -> str:
    """Return a text without what may differ between two runs that print the same."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text.strip()


def compare_texts(real: str, recorded: str, again: str | None = None) -> str:
    """Return how what was printed under ``%%meta`` differs from what should be.

    Args:
        real: What the cell prints for real.
        recorded: What it printed under ``%%meta``.
        again: What it prints in another real run, if there was one.

    Returns:
        ``same``, ``without values`` if nothing differs but that values are not shown,
        ``unstable`` if two real runs differ in other words than they can be compared
        without, or ``other``.
    """
    wanted, met = normalize(real), normalize(recorded)
    if wanted == met:
        return SAME
    if UNKNOWN in met:
        parts = (re.escape(part) for part in met.split(UNKNOWN))
        if re.fullmatch(r"\w+\(.*?\)".join(parts), wanted):
            return WITHOUT_VALUES
    return OTHER if again is None else compare_stable(wanted, met, normalize(again))


def compare_stable(wanted: str, met: str, again: str) -> str:
    """Compare the words that are alike in two real runs."""
    words = [text.split() for text in (wanted, met, again)]
    if len(words[0]) != len(words[2]):
        return UNSTABLE
    if len(words[0]) != len(words[1]):
        return OTHER
    differ = [a != b for a, b, c in zip(*words, strict=True) if a == c]
    if any(differ):
        return OTHER
    return UNSTABLE


COLUMNS = ("same", "without values", "unstable", "other", "refused", "late", "crashed")
GIB = 2**30
PATIENCE = 3
"""How many times as long a cell may take under ``%%meta``."""


class Cell(NamedTuple):
    """A cell that runs for real, and what came of it under ``%%meta``.

    Attributes:
        number: Its position in its file.
        found: One of ``COLUMNS``.
        reason: The error, or what it printed for real and otherwise.
        place: Where the error was raised.
        seconds: How long it took for real, and under ``%%meta``.
        n_operators: How many operators were recorded.
    """

    number: int
    found: str
    reason: str
    place: str
    seconds: tuple[float, float]
    n_operators: int


def check(script: Script, limits: Limits) -> list[Cell]:
    """Return what came of the cells of a script that run for real."""
    real = run_cells(script, limits, recorded=False)
    if all(outcome.error for outcome in real):
        return []
    slower = limits._replace(seconds=PATIENCE * limits.seconds)
    met = run_cells(script, slower, recorded=True)
    met += [Outcome(met[-1].error, "", "", 0.0)] * (len(real) - len(met))
    differ = any(
        not a.error and not b.error and compare_texts(a.text, b.text) != SAME
        for a, b in zip(real, met, strict=False)
    )
    again = run_cells(script, limits, recorded=False) if differ else real
    return [
        compare(number, *outcomes)
        for number, outcomes in enumerate(zip(real, met, again, strict=False))
        if not outcomes[0].error
    ]


def compare(number: int, real: Outcome, met: Outcome, again: Outcome) -> Cell:
    """Compare a cell's run under ``%%meta`` with two real ones."""
    seconds = (real.seconds, met.seconds)
    if met.error:
        found = {LATE: "late", CRASHED: "crashed"}.get(met.error, "refused")
        return Cell(number, found, met.error, met.place, seconds, met.n_operators)
    found = compare_texts(real.text, met.text, again.text)
    reason = "" if found == SAME else describe_difference(real.text, met.text)
    return Cell(number, found, reason, "", seconds, met.n_operators)


def describe_difference(wanted: str, met: str) -> str:
    """Return the first lines that differ."""
    pairs = zip(wanted.splitlines(), met.splitlines(), strict=False)
    for a, b in pairs:
        if compare_texts(a, b) != SAME:
            return f"{a[:200]!r} is {b[:200]!r}"
    return f"{len(wanted.splitlines())} lines are {len(met.splitlines())}"


def find_cause(reason: str) -> str:
    """Return an error's message without its names and numbers."""
    reason = re.sub(r"'[^']*'|`[^`]*`", "'...'", reason)
    return re.sub(r"\d[\d.,]*", "N", reason)[:160]


def count_causes(found: Iterable[tuple[str, Cell]]) -> Iterator[str]:
    """Yield why cells were refused, the most frequent first, with an example each."""
    causes: dict[str, list[str]] = {}
    for name, cell in found:
        if cell.found not in {"same", "unstable"}:
            is_error = cell.found in {"refused", "late", "crashed"}
            cause = find_cause(cell.reason) if is_error else cell.found
            example = f"{name}[{cell.number}] {cell.place or cell.reason}"
            causes.setdefault(cause, []).append(example)
    for cause, examples in sorted(causes.items(), key=lambda item: -len(item[1])):
        yield f"- {len(examples)} cells: {cause}\n  {examples[0]}"


def is_about_tensors(cell: Cell) -> bool:
    """Whether a cell has operators, or was ended before one could tell."""
    return cell.n_operators > 0 or cell.found in {"refused", "late", "crashed"}


def make_row(name: str, cells: Sequence[Cell]) -> str:
    """Return the row of a file."""
    counts = Counter(cell.found for cell in cells)
    seconds = [sum(pair) for pair in zip(*(c.seconds for c in cells), strict=True)]
    shown = [str(counts[title] or "") for title in COLUMNS]
    real, met = seconds or (0, 0)
    return f"| {name} | {len(cells)} | {' | '.join(shown)} | {real:.1f} | {met:.1f} |"


def sweep(options: Any) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the name of each file of which some cell runs for real, and those cells."""
    limits = Limits(options.seconds, int(options.gib * GIB))
    for given in options.paths:
        root = given if given.is_dir() else given.parent
        for path in find_files(given):
            name = path.relative_to(root.parent).as_posix()
            try:
                cells = tuple(read_cells(path, split=options.split))
            except (ValueError, SyntaxError, KeyError) as error:
                print(f"- {name} is not read: {error}", file=sys.stderr)
                continue
            found = check(Script(root, path, cells), limits) if cells else []
            if found:
                yield name, found


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the command's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--seconds", type=float, default=60, help="for a cell")
    parser.add_argument("--gib", type=float, default=16, help="of address space")
    parser.add_argument("--split", action="store_true", help="scripts at blank lines")
    parser.add_argument("--keep", type=Path, help="append what was found as JSON lines")
    return parser


def main() -> None:
    """Print the table, and why cells do not count."""
    options = make_parser().parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    with mm.record():  # what torch imports when first asked, before there are children
        torch.nn.functional.gelu(torch.ones(2)).sum()
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print(f"| file | cells | {' | '.join(COLUMNS)} | s for real | s |")
    print("|---|" + (len(COLUMNS) + 3) * "--:|", flush=True)
    found = []
    for name, cells in sweep(options):
        print(make_row(name, cells), flush=True)
        found += [(name, cell) for cell in cells]
        if options.keep is not None:
            with options.keep.open("a", encoding="utf-8") as lines:
                lines.writelines(f"{json.dumps([name, *cell])}\n" for cell in cells)
    cells = [cell for _, cell in found]
    print(make_row("**all**", cells))
    print(make_row("**with operators**", [c for c in cells if is_about_tensors(c)]))
    print("\nWhy not:\n", *count_causes(found), sep="\n")


if __name__ == "__main__":
    main()
