"""What ``Trace.explanation`` says of programs that are broken in known ways.

``python -m tests.conformance.explanations FOLDER`` runs each program of a folder as a
cell, and prints how many explanations name the line that raises, and at least one of
the operands that are at fault; how many show a repair that is as good as the known
one, with as many parameters and the same last shape; and how many repairs fail on the
CPU. A program begins with a docstring whose ``line:``, ``operands:`` and ``fix:`` tell
these.
"""

import argparse
import ast
import datetime as dt
import linecache
import re
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Final, NamedTuple

import torch

from meta_magic.explain.explanations import Explanation
from meta_magic.explain.repairs import Outcome, Repair, read_outcome
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Options
from meta_magic.trace.rerun import list_names, make_rerun
from meta_magic.trace.trace import Trace
from tests.conformance.apart import run_apart
from tests.conformance.broken_programs import HEADER, mend, run

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
        has_culprit: Whether a line is where the mistake is.
        has_rule: Whether a rule is.
        has_repair: Whether one of the repairs is as good as the known one.
        n_repairs: How many are shown.
        n_failing: How many of them fail on the CPU.
        seconds: How long it took to explain.
        text: The explanation.
    """

    name: str
    is_line_right: bool
    has_operand: bool
    has_culprit: bool
    has_rule: bool
    has_repair: bool
    n_repairs: int
    n_failing: int
    seconds: float
    text: str


def record_cell(text: str, name: str) -> Trace:
    """Return the recording of a program that is run as a cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = sys.modules["__cell__"] = ModuleType("__cell__")
    variables = vars(module)
    code = compile(text, name, "exec")
    rerun = make_rerun(
        text=text,
        file=name,
        of_module=variables,
        variables=variables,
        names=list_names(code),
        options=Options(),
    )
    recording = Recording(name, namespace=variables)
    raised: BaseException | None = None
    torch.manual_seed(0)
    try:
        with redirect_stdout(StringIO()):
            recording.guard.run(lambda: exec(code, variables))
    except Exception as error:
        raised = error
    source = CellSource(text=text, file=name)
    return replace(recording.finish(raised, variables, source), rerun=rerun)


def is_as_good(repair: Repair, wanted: Outcome) -> bool:
    """Whether a program is repaired to what the known fix makes of it."""
    trace = record_cell(repair.source, "<repaired>")
    return trace.error is None and read_outcome(trace) == wanted


def fails(repair: Repair) -> bool:
    """Whether a repaired program fails on the CPU."""
    return run_apart(lambda: run(repair.source, nullcontext())) is not None


def judge(path: Path) -> Case | None:
    """Return how a program is explained; None if it does not raise."""
    text = path.read_text(encoding="utf-8")
    header = HEADER.match(text)
    fields = dict(FIELD.findall(header[1] if header else ""))
    trace = record_cell(text, f"<{path.stem}>")
    start = perf_counter()
    found = trace.explanation
    seconds = perf_counter() - start
    if found is None or fields["kind"] != "error":
        return None
    wanted = read_outcome(record_cell(mend(text), "<mended>"))
    return Case(
        name=path.stem,
        is_line_right=str(found.line) == fields["line"].split(" | ")[0],
        has_operand=bool({*walk_named(found)} & {*split_names(fields["operands"])}),
        has_culprit=bool({found.line, *found.culprits} & read_lines(fields["culprit"])),
        has_rule=bool(found.rules),
        has_repair=any(is_as_good(repair, wanted) for repair in found.repairs),
        n_repairs=len(found.repairs),
        n_failing=sum(map(fails, found.repairs)),
        seconds=seconds,
        text=f"{header[1] if header else ''}\n{found}",
    )


def describe(case: Case) -> str:
    """Return the name of a case, and what of it is not as it should be."""
    wanted = {
        "line": case.is_line_right,
        "operand": case.has_operand,
        "culprit": case.has_culprit,
        "rule": case.has_rule,
        "repair": case.has_repair,
        "runs on the CPU": not case.n_failing,
    }
    lacking = [name for name, is_there in wanted.items() if not is_there]
    return f"{case.name} ({case.seconds:.2f} s) lacks: {', '.join(lacking) or '-'}"


def read_lines(culprits: str) -> set[int]:
    """Return the lines that are listed before their text."""
    return {int(line) for line in culprits.partition(" | ")[0].split(", ")}


def walk_named(explanation: Explanation) -> Iterator[str]:
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
    record_cell(WARM, "<warm>")
    paths = sorted(options.folder.glob("*.py"))
    chosen = [p for p in paths if any(word in p.stem for word in options.words)]
    cases = []
    for path in chosen:
        case = run_apart(lambda: judge(path))  # noqa: B023
        if case is not None:
            cases.append(case)
            is_good = case.has_operand and case.has_repair and not case.n_failing
            if options.all or not is_good:
                print(f"== {describe(case)}\n{case.text}\n", flush=True)
    print_table(cases)


def print_table(cases: Sequence[Case]) -> None:
    """Print how many programs are explained how well."""
    day = dt.datetime.now(tz=dt.UTC).date()
    n = len(cases)
    seconds = sorted(case.seconds for case in cases)
    print(f"{day}, torch {torch.__version__}, {n} programs that raise")
    print(f"right line: {sum(c.is_line_right for c in cases)}")
    print(f"an operand: {sum(c.has_operand for c in cases)}")
    print(f"a line of the mistake: {sum(c.has_culprit for c in cases)}")
    print(f"a rule: {sum(c.has_rule for c in cases)}")
    print(f"a repair as good as the known one: {sum(c.has_repair for c in cases)}")
    n_repairs = sum(case.n_repairs for case in cases)
    n_failing = sum(case.n_failing for case in cases)
    print(f"repairs shown: {n_repairs}, of which {n_failing} fail on the CPU")
    print(f"median {statistics.median(seconds):.2f} s, {seconds[int(MANY * n)]:.2f} s")


if __name__ == "__main__":
    main()
