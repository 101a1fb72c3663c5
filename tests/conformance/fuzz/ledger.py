"""What programs gave, kept in a file of a line each, so that a long run can go on."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.fuzz.findings import Finding
from tests.conformance.kept_rows import KeptRows


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
