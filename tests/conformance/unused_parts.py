"""What of the package no program of the conformance and integration tests runs.

``pytest tests/conformance tests/integration --cov --cov-report=json`` writes
``coverage.json``. From it ``python -m tests.conformance.unused_parts coverage.json``
prints, for each room, how many statements ran, and the functions that none ran: only
their own unit tests need them. Children of forks are not counted, so ``explain`` and
``trials`` run more than it says.
"""

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def walk_functions(text: str) -> Iterator[tuple[str, range]]:
    """Yield the functions of a file, each with the lines of its body."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[bool(ast.get_docstring(node)) :]
            if body:
                yield node.name, range(body[0].lineno, (body[-1].end_lineno or 0) + 1)


def main() -> None:
    """Print the table, and the functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("coverage", type=Path)
    options = parser.parse_args()
    files = json.loads(options.coverage.read_text())["files"]
    n_run, n_all, unused = Counter[str](), Counter[str](), []
    for path, found in files.items():
        name = path.rpartition("meta_magic/")[2]
        ran, missed = {*found["executed_lines"]}, {*found["missing_lines"]}
        room = name.split("/")[0]
        n_run[room] += len(ran)
        n_all[room] += len(ran | missed)
        for function, lines in walk_functions(Path(path).read_text()):
            if missed.intersection(lines) and not ran.intersection(lines):
                unused.append(f"{name}: {function}, {len(lines)} lines")
    for room, n in sorted(n_all.items()):
        print(f"{room:<16} {n_run[room]:>6} of {n:>6}  {n_run[room] / n:.0%}")
    print("\n".join(sorted(unused)))


if __name__ == "__main__":
    main()
