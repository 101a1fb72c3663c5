"""What other tools say of programs that are broken in known ways.

``python -m tests.conformance.other_explanations FOLDER`` runs each program of a folder
on the CPU, on plain meta, and by ``tensor-sensor`` where that is installed, and prints
how many errors come at the line that raises, how many texts name one of the operands
that are at fault as the program does, and how many show a rule or a repair: none of
these tools has any.
"""

import argparse
import datetime as dt
import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from tests.conformance.apart import Crashed, run_apart
from tests.conformance.broken_programs import HEADER, Failure, run
from tests.conformance.explanations import FIELD, NAMES, split_names

TOOLS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "plain torch": nullcontext,
    "plain meta": lambda: torch.device("meta"),
    "tensor-sensor": lambda: importlib.import_module("tsensor").clarify(show=None),
}


def judge(path: Path, tool: str) -> Iterator[str]:
    """Yield what a tool's error has of a program that raises."""
    text = path.read_text(encoding="utf-8")
    header = HEADER.match(text)
    fields = dict(FIELD.findall(header[1] if header else ""))
    if fields["kind"] != "error":
        return
    try:
        failure: Failure | None = run_apart(lambda: run(text, TOOLS[tool]()))
    except Crashed:
        failure = None
    yield "programs"
    if failure is None:
        yield "does not raise"
        return
    if str(failure.line) == fields["line"].split(" | ")[0]:
        yield "right line"
    if {*NAMES.findall(failure.text)} & {*split_names(fields["operands"])}:
        yield "an operand"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}")
    for tool in TOOLS:
        try:
            TOOLS[tool]()
        except ImportError:
            print(f"{tool}: not installed")
            continue
        paths = sorted(folder.glob("*.py"))
        found = Counter(what for path in paths for what in judge(path, tool))
        print(f"{tool}: {dict(found)}", flush=True)


if __name__ == "__main__":
    main()
