"""How random programs differ: ``python -m tests.conformance.fuzz --seeds 10``.

Prints a table of outcomes, then each cause once, reduced to a program that can be run.
"""

import argparse
import datetime as dt
import gc
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.conformance.fuzz.checking import check
from tests.conformance.fuzz.findings import KINDS, Finding, worst
from tests.conformance.fuzz.grammar import OUT_THEME, THEMES
from tests.conformance.fuzz.programs import make_program
from tests.conformance.fuzz.reducing import reduce, render
from tests.conformance.kept_rows import KeptRows
from tests.conformance.model_runs import in_child


class Found(NamedTuple):
    """What one program gave: how it ended, and each difference."""

    seed: int
    number: int
    outcome: str
    findings: list[Finding]


class Ledger:
    """All that was found, in this run and in those that wrote the same file before.

    Args:
        path: The file, made when it is not there; None to write none.
    """

    def __init__(self, path: Path | None) -> None:
        self._rows = KeptRows(path)
        self.found = [*map(read, self._rows.earlier)]

    def missing(self, seed: int, numbers: Iterable[int]) -> list[int]:
        """Return the programs of a seed that were not checked yet."""
        known = {f.number for f in self.found if f.seed == seed}
        return [number for number in numbers if number not in known]

    def add(self, found: Iterable[Found]) -> None:
        """Take in what programs gave."""
        for one in found:
            self.found.append(one)
            self._rows.add([*one[:-1], [*map(asdict, one.findings)]])


def read(row: Any) -> Found:
    """Return what a row says."""
    seed, number, outcome, findings = row
    return Found(seed, number, outcome, [Finding(**finding) for finding in findings])


N_TOGETHER = 50
"""Programs in one process: what ends it takes no more with it."""

N_TO_PREPARE = 10
"""Programs that import about all that torch imports late."""

Key = tuple[str, str, str]


def key_of(finding: Finding) -> Key:
    """Return what tells the cause of a finding from others."""
    return finding.kind, finding.check, finding.about


def check_many(
    seed: int, numbers: Sequence[int], without: tuple[str, ...]
) -> list[Found]:
    """Check programs in turn, none of which has a statement with one of some texts."""
    torch.set_num_threads(1)
    found = []
    for number in numbers:
        findings = check(make_program(seed, number, without))
        first = worst(findings)
        found.append(Found(seed, number, first.kind if first else "same", findings))
    return found


def prepare() -> None:
    """Import what each child would, where no collector of theirs looks any more.

    To look through it all for tensors that were written takes half of a check else.
    """
    for number in range(N_TO_PREPARE):
        check(make_program(0, number))
    gc.collect()
    gc.freeze()


def check_apart(
    seed: int, numbers: Sequence[int], without: tuple[str, ...]
) -> list[Found]:
    """Check programs in a process of their own, and each in one if that one ends."""
    found, reason = in_child(check_many, seed, numbers, without)
    if found is not None:
        return found
    if len(numbers) > 1:
        return [f for n in numbers for f in check_apart(seed, [n], without)]
    died = Finding("crashed", "process", reason, reason[:60])
    return [Found(seed, numbers[0], "crashed", [died])]


def shorten(
    seed: int, number: int, without: tuple[str, ...], finding: Finding
) -> tuple[str, list[str]]:
    """Return the program of a finding, reduced, as text, and what it was made from."""
    program = make_program(seed, number, without)
    if finding.check != "process":
        program, finding = reduce(program, finding)
    templates = sorted({s.template for s in program.statements if s.template})
    return render(program, finding), templates


def print_table(found: list[Found]) -> None:
    """Print how the programs of each seed ended."""
    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    for f in found:
        outcomes[f.seed][f.outcome] += 1
    kinds = ("same", *reversed(KINDS))
    print(f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}\n")
    print(f"| seed | programs | {' | '.join(kinds)} |")
    print("|---|" + "--:|" * (len(kinds) + 1))
    for seed, counts in (*outcomes.items(), ("all", sum(outcomes.values(), Counter()))):
        cells = " | ".join(f"{counts[kind]:,}" for kind in kinds)
        print(f"| {seed} | {counts.total():,} | {cells} |", flush=True)


def print_causes(found: list[Found], options: argparse.Namespace) -> None:
    """Print each cause once: how often it was met, and a program that shows it."""
    counts = Counter(key for f in found for key in {key_of(g) for g in f.findings})
    first: dict[Key, tuple[int, int, Finding]] = {}
    for f in found:
        for finding in f.findings:
            first.setdefault(key_of(finding), (f.seed, f.number, finding))
    shown: dict[str, str] = {}
    for key, n in sorted(counts.items(), key=lambda item: KINDS.index(item[0][0])):
        seed, number, finding = first[key]
        title = ", ".join(key)
        print(f"\n## {title} ({n}; first in {seed}/{number})", flush=True)
        if finding.kind in options.reduce:
            made, reason = in_child(shorten, seed, number, options.without, finding)
            text, templates = made or (f"(not reduced: {reason})", [title])
            same = shown.setdefault(str(templates), title)
            print(text if same == title else f"As {same}.", flush=True)


def main() -> None:
    """Check programs, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--programs", type=int, default=100, help="for each seed")
    parser.add_argument("--start", type=int, default=0, help="the first program")
    parser.add_argument(
        "--reduce", nargs="*", choices=KINDS, default=["silent", "crashed", "refused"]
    )
    parser.add_argument("--without", nargs="*", default=(), help="texts to leave out")
    parser.add_argument("--out", action="store_true", help="programs of `out=` alone")
    parser.add_argument("--ledger", type=Path, help="a file to keep, and to go on from")
    options = parser.parse_args()
    options.without = tuple(options.without)
    warnings.simplefilter("ignore")
    if options.out:
        THEMES[:] = [OUT_THEME]
    ledger = Ledger(options.ledger)
    prepare()
    numbers = range(options.start, options.start + options.programs)
    for seed in range(options.first, options.first + options.seeds):
        missing = ledger.missing(seed, numbers)
        for n in range(0, len(missing), N_TOGETHER):
            ledger.add(check_apart(seed, missing[n : n + N_TOGETHER], options.without))
    print_table(ledger.found)
    print_causes(ledger.found, options)


if __name__ == "__main__":
    main()
