"""How random programs differ: ``python -m tests.conformance.fuzz --seeds 10``.

Prints a table of outcomes, then each cause once, reduced to a program that can be run.
"""

import argparse
import datetime as dt
import warnings
from collections import Counter
from typing import NamedTuple

import torch

from tests.conformance.fuzz.checking import check
from tests.conformance.fuzz.findings import KINDS, Finding, worst
from tests.conformance.fuzz.programs import Program, make_program
from tests.conformance.fuzz.reducing import reduce, render
from tests.conformance.model_runs import in_child

N_TOGETHER = 50
"""Programs in one process: what ends it takes no more with it."""

Key = tuple[str, str, str]


class Found(NamedTuple):
    """What one program gave: how it ended, and each difference."""

    seed: int
    number: int
    outcome: str
    findings: list[Finding]


def key_of(finding: Finding) -> Key:
    """Return what tells the cause of a finding from others."""
    return finding.kind, finding.check, finding.about


def check_many(seed: int, numbers: range, without: tuple[str, ...]) -> list[Found]:
    """Check programs in turn, none of which has a statement with one of some texts."""
    torch.set_num_threads(1)
    found = []
    for number in numbers:
        findings = check(make_program(seed, number, without))
        first = worst(findings)
        found.append(Found(seed, number, first.kind if first else "same", findings))
    return found


def check_apart(seed: int, numbers: range, without: tuple[str, ...]) -> list[Found]:
    """Check programs in a process of their own, and each in one if that one ends."""
    found, reason = in_child(check_many, seed, numbers, without)
    if found is not None:
        return found
    if len(numbers) > 1:
        return [f for n in numbers for f in check_apart(seed, range(n, n + 1), without)]
    died = Finding("crashed", "process", reason, reason[:60])
    return [Found(seed, numbers[0], "crashed", [died])]


def shorten(program: Program, finding: Finding) -> tuple[str, list[str]]:
    """Return the program of a finding, reduced, as text, and what it was made from."""
    if finding.check != "process":
        program, finding = reduce(program, finding)
    templates = sorted({s.template for s in program.statements if s.template})
    return render(program, finding), templates


def print_table(outcomes: dict[int, Counter[str]]) -> None:
    """Print how the programs of each seed ended."""
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
            program = make_program(seed, number, options.without)
            made, reason = in_child(shorten, program, finding)
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
    options = parser.parse_args()
    options.without = tuple(options.without)
    warnings.simplefilter("ignore")
    found: list[Found] = []
    outcomes: dict[int, Counter[str]] = {}
    for seed in range(options.first, options.first + options.seeds):
        outcomes[seed] = Counter()
        end = options.start + options.programs
        for n in range(options.start, end, N_TOGETHER):
            met = check_apart(seed, range(n, min(n + N_TOGETHER, end)), options.without)
            outcomes[seed].update(f.outcome for f in met)
            found += met
    print_table(outcomes)
    print_causes(found, options)


if __name__ == "__main__":
    main()
