"""What programs gave, kept in a file of a line each, so that a long run can go on."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tests.conformance.fuzz.findings import Finding

__all__ = ["Found", "Ledger"]


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
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.found = [*map(read, lines)]

    def missing(self, seed: int, numbers: Iterable[int]) -> list[int]:
        """Return the programs of a seed that were not checked yet."""
        known = {f.number for f in self.found if f.seed == seed}
        return [number for number in numbers if number not in known]

    def add(self, found: Iterable[Found]) -> None:
        """Take in what programs gave."""
        for one in found:
            self.found.append(one)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(write(one) + "\n")


def write(found: Found) -> str:
    """Return what a program gave as a line."""
    return json.dumps([*found[:-1], [*map(asdict, found.findings)]])


def read(line: str) -> Found:
    """Return what a line says."""
    seed, number, outcome, findings = json.loads(line)
    return Found(seed, number, outcome, [Finding(**finding) for finding in findings])
