"""What ``Trace.explanation`` says of programs that are broken in known ways.

``python -m tests.conformance.explanations FOLDER`` runs each program of a folder as a
cell, and prints how many explanations name the line that raises, and at least one of
the operands that are at fault. A program begins with a docstring whose ``line:`` and
``operands:`` tell these.
"""

import argparse
import ast
import datetime as dt
import linecache
import re
import statistics
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import torch

from meta_magic.explain.explanations import Explanation
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from tests.conformance.apart import run_apart
from tests.conformance.broken_programs import HEADER

FIELD: Final = re.compile(r"^(\w+): +(.*)$", re.MULTILINE)
NAMES: Final = re.compile(r"[\w.\[\]]+")
MANY: Final = 0.9

WARM: Final = "import torch\ntorch.nn.Linear(999, 999)(torch.ones(999, 999))\n1 / 0"
"""Has torch imported what it does at first sight of a large call, and fails."""


class Case(NamedTuple):
    """A program, and how it was explained.

    Attributes:
        name: Its file's name.
        is_line_right: Whether the line is named that raises.
        has_operand: Whether one of the operands is that are at fault.
        has_rule: Whether a rule is.
        seconds: How long it took to explain.
        text: The explanation.
    """

    name: str
    is_line_right: bool
    has_operand: bool
    has_rule: bool
    seconds: float
    text: str


def explain(text: str, name: str) -> tuple[Explanation | None, float]:
    """Return the explanation of a program that is recorded as a cell, and its time."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    recording = Recording(name)
    raised: BaseException | None = None
    variables = {"__name__": "__main__"}
    torch.manual_seed(0)
    try:
        with redirect_stdout(StringIO()):
            recording.guard.run(lambda: exec(compile(text, name, "exec"), variables))
    except Exception as error:
        raised = error
    trace = recording.finish(raised, variables, CellSource(text=text, file=name))
    start = perf_counter()
    return trace.explanation, perf_counter() - start


def judge(path: Path) -> Case | None:
    """Return how a program is explained; None if it does not raise."""
    text = path.read_text(encoding="utf-8")
    header = HEADER.match(text)
    fields = dict(FIELD.findall(header[1] if header else ""))
    found, seconds = explain(text, f"<{path.stem}>")
    if found is None or fields["kind"] != "error":
        return None
    return Case(
        name=path.stem,
        is_line_right=str(found.line) == fields["line"].split(" | ")[0],
        has_operand=bool({*list_names(found)} & {*split_names(fields["operands"])}),
        has_rule=bool(found.rules),
        seconds=seconds,
        text=f"{fields['line']}\n{fields['operands']}\n{found}",
    )


def list_names(explanation: Explanation) -> Iterator[str]:
    """Yield what an explanation names, with what is written within."""
    callers = (text for _, text in explanation.callers)
    for name in (*explanation.operands, explanation.expression, *callers):
        try:
            tree = ast.parse(name.partition(" (line ")[0])
        except SyntaxError:  # an expression over several lines
            yield from NAMES.findall(name)
        else:
            yield from map(ast.unparse, filter(is_expression, ast.walk(tree)))


def split_names(operands: str) -> Iterator[str]:
    """Yield the expressions that are listed, in the way that Python writes them."""
    try:
        listed = ast.parse(f"[{operands}]", mode="eval").body
    except SyntaxError:
        yield from (name.strip() for name in operands.split(","))
        return
    assert isinstance(listed, ast.List)
    yield from map(ast.unparse, listed.elts)


def is_expression(node: ast.AST) -> bool:
    """Whether a node is something that can be named."""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def main() -> None:
    """Print the table, and what is not explained so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", default=[""], help="in names of programs")
    parser.add_argument("--all", action="store_true", help="print each explanation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    explain(WARM, "<warm>")
    paths = sorted(options.folder.glob("*.py"))
    chosen = [p for p in paths if any(word in p.stem for word in options.words)]
    cases = []
    for path in chosen:
        case = run_apart(lambda: judge(path))  # noqa: B023
        if case is not None:
            cases.append(case)
            if options.all or not (case.is_line_right and case.has_operand):
                print(f"== {case.name}\n{case.text}\n", flush=True)
    print_table(cases)


def print_table(cases: Sequence[Case]) -> None:
    """Print how many programs are explained how well."""
    day = dt.datetime.now(tz=dt.UTC).date()
    n = len(cases)
    seconds = sorted(case.seconds for case in cases)
    print(f"{day}, torch {torch.__version__}, {n} programs that raise")
    print(f"right line: {sum(c.is_line_right for c in cases)}")
    print(f"an operand: {sum(c.has_operand for c in cases)}")
    print(f"a rule: {sum(c.has_rule for c in cases)}")
    print(f"median {statistics.median(seconds):.2f} s, {seconds[int(MANY * n)]:.2f} s")


if __name__ == "__main__":
    main()
