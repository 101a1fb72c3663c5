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
import os
import re
import statistics
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Final, NamedTuple

import torch

from meta_magic.explain.edited_runs import Ending, read_ending
from meta_magic.explain.explanations import Explanation, Repair
from meta_magic.trace.notes import EarlierCell
from meta_magic.trace.trace import Trace
from tests.conformance.apart import run_apart
from tests.conformance.broken_programs import HEADER, mend, run
from tests.conformance.recorded_cells import record_cell

FIELD: Final = re.compile(r"^(\w+): +(.*)$", re.MULTILINE)
NAMES: Final = re.compile(r"[\w.\[\]]+")
LATER: Final = re.compile(r"then (?:(.*), )?line (\d+) fails")
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
        n_lines: How many lines are said to be where the mistake may be.
        n_later: How many repairs pass the failed line, and fail later.
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
    n_lines: int
    n_later: int


class Piece(NamedTuple):
    """Consecutive lines of a program that are one cell, or a file.

    Attributes:
        name: What explanations call it, as ``In[2]``; "" for the last cell.
        first: The program's line that is its first.
        text: The lines.
    """

    name: str
    first: int
    text: str


def split_program(text: str, line: int, *, is_file: bool) -> list[Piece]:
    """Return a program as three cells: definitions, what is built, and what fails.

    Args:
        text: The program.
        line: The line that raises.
        is_file: Whether the definitions are a file.
    """
    body = ast.parse(text).body
    raising = run_apart(lambda: find_raising(text)) or line
    starts = [
        min(n.lineno for n in (one, *getattr(one, "decorator_list", [])))
        for one in body
    ]
    last = max(n for n, start in enumerate(starts) if start <= raising)
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    defined = max((n for n in range(last) if isinstance(body[n], kinds)), default=-1)
    ends = [body[n].end_lineno or 0 if n >= 0 else 0 for n in (defined, last - 1)]
    lines = text.split("\n")
    cuts = [0, ends[0], max(ends), len(lines)]
    names = ["defined.py" if is_file else "In[1]", "In[2]", ""]
    return [
        Piece(name, start + 1, "\n".join(lines[start:end]))
        for name, start, end in zip(names, cuts[:-1], cuts[1:], strict=True)
        if end > start
    ]


def find_raising(text: str) -> int | None:
    """Return the line of the top level at which a program raises on the CPU."""
    try:
        with redirect_stdout(StringIO()):
            exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return next(f.lineno for f in frames if f.filename == "<program>")
    return None


def record_pieces(pieces: Sequence[Piece], name: str) -> Trace:
    """Return the recording of the last of several cells, which run in order."""
    module = sys.modules["__cell__"] = ModuleType("__cell__")
    variables = vars(module)
    earlier: list[EarlierCell] = []
    for piece in pieces[:-1]:
        text = piece.text
        if piece.name.endswith(".py"):
            text = import_piece(text)
        trace = record_cell(text, f"{name}{piece.name}", variables)
        assert trace.error is None, trace.error
        earlier.append(EarlierCell(piece.name if text == piece.text else "In[1]", text))
    return record_cell(pieces[-1].text, name, variables, earlier)


def import_piece(text: str) -> str:
    """Write a module, and return the cell that imports it."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    sys.path.insert(0, folder)
    Path(folder, "defined.py").write_text(text, encoding="utf-8")
    body = ast.parse(text).body
    imports = [
        ast.unparse(n) for n in body if isinstance(n, (ast.Import, ast.ImportFrom))
    ]
    own = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {n.id for one in body if isinstance(one, ast.Assign) for n in ast.walk(one)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    return "\n".join(
        [*imports, f"from defined import {', '.join(sorted(own))}" if own else ""]
    )


def apply_repair(repair: Repair, text: str, pieces: Sequence[Piece]) -> str:
    """Return a program with a repair of one of its cells."""
    firsts = {one.name: one.first for one in pieces}
    lines = text.split("\n")
    cells = repair.cells or [repair.cell] * len(repair.changes)
    for cell, (line, before, after) in zip(cells, repair.changes, strict=True):
        at = firsts[cell] + line - 2
        assert lines[at] == before, (lines[at], before)
        lines[at] = after
    return "\n".join(lines)


def is_as_good(program: str, wanted: Ending) -> bool:
    """Whether a program is repaired to what the known fix makes of it."""
    trace = record_cell(program, "<repaired>")
    return trace.error is None and read_ending(trace) == wanted


def fails(program: str, repair: Repair, firsts: dict[str, int]) -> bool:
    """Whether a repaired program fails on the CPU, but where the repair says it.

    Args:
        program: The program.
        repair: Its repair.
        firsts: By name of a cell, the program's line that is its first.
    """
    failure = run_apart(lambda: run(program, nullcontext()))
    told = LATER.match(repair.then)
    if told is None:
        return failure is not None
    line = firsts[told[1] or ""] + int(told[2]) - 1
    return failure is None or failure.line != line


def judge(path: Path, n_cells: int, *, is_file: bool) -> Case | None:
    """Return how a program is explained; None if it does not raise."""
    text = path.read_text(encoding="utf-8")
    header = HEADER.match(text)
    fields = dict(FIELD.findall(header[1] if header else ""))
    raising = int(fields["line"].split(" | ")[0]) if fields["kind"] == "error" else 1
    pieces = [Piece("", 1, text)]
    if n_cells > 1 and fields["kind"] == "error":
        pieces = split_program(text, raising, is_file=is_file)
    trace = record_pieces(pieces, f"<{path.stem}>")
    start = perf_counter()
    found = trace.explanation
    seconds = perf_counter() - start
    if found is None or fields["kind"] != "error":
        return None
    wanted = read_ending(record_cell(mend(text), "<mended>"))
    firsts = {piece.name: piece.first for piece in pieces}
    lines = {firsts[""] + line - 1 for line in found.culprits}
    lines |= {
        firsts[name] + line - 1
        for name, line in found.culprits_before
        if name in firsts
    }
    where = re.fullmatch(r"(?:(.*), )?line (\d+)", found.where)
    at = firsts.get(where[1] or "", 0) + int(where[2]) - 1 if where else found.line
    programs = [apply_repair(repair, text, pieces) for repair in found.repairs]
    return Case(
        name=path.stem,
        is_line_right=at == raising,
        has_operand=bool({*walk_named(found)} & {*split_names(fields["operands"])}),
        has_culprit=bool({at, *lines} & read_lines(fields["culprit"])),
        has_rule=bool(found.rules),
        has_repair=any(is_as_good(program, wanted) for program in programs),
        n_repairs=len(programs),
        n_failing=sum(
            fails(program, repair, firsts)
            for program, repair in zip(programs, found.repairs, strict=True)
        ),
        seconds=seconds,
        text=f"{header[1] if header else ''}\n{found}",
        n_lines=len({at, *lines}),
        n_later=sum(bool(repair.then) for repair in found.repairs),
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
    made = (part for one in explanation.made for part in one.split(" = "))
    named = *explanation.operands, explanation.expression, *callers, *made
    for name in named:
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
    parser.add_argument("--cells", type=int, default=1, choices=(1, 3))
    parser.add_argument("--file", action="store_true", help="definitions in a file")
    parser.add_argument("--all", action="store_true", help="print each explanation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record_cell(WARM, "<warm>")
    paths = sorted(options.folder.glob("*.py"))
    chosen = [p for p in paths if any(word in p.stem for word in options.words)]
    cases = []
    for path in chosen:
        n_cells = 3 if options.file else options.cells
        case = run_apart(lambda: judge(path, n_cells, is_file=options.file))  # noqa: B023
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
    print(f"lines of each: {statistics.mean(c.n_lines for c in cases):.1f}")
    print(f"a rule: {sum(c.has_rule for c in cases)}")
    print(f"a repair as good as the known one: {sum(c.has_repair for c in cases)}")
    n_repairs = sum(case.n_repairs for case in cases)
    n_failing = sum(case.n_failing for case in cases)
    n_later = sum(case.n_later for case in cases)
    shown = f"repairs shown: {n_repairs}, {n_later} of them up to a later error"
    print(f"{shown}; {n_failing} fail on the CPU")
    print(f"median {statistics.median(seconds):.2f} s, {seconds[int(MANY * n)]:.2f} s")


if __name__ == "__main__":
    main()
