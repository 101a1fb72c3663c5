"""Rows kept in a file of a line each, so that a long run can go on where it stopped."""

import json
from pathlib import Path
from typing import Any


class KeptRows:
    """Rows of this run, and of those that wrote the same file before.

    Args:
        path: The file, made when it is not there; None to write none.

    Attributes:
        earlier: Those that were there.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.earlier = [*map(json.loads, lines)]

    def add(self, row: Any) -> None:
        """Write one more."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
