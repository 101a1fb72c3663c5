"""What fails when a part of recording, replaying or session is switched off.

A part is a function, a context manager or the body of an ``if``. Switched off, a
function returns at once what stands for nothing (None, False, an empty tuple, its
first argument), a context manager does nothing, and the condition of an ``if`` is
false. The corpora are programs, not the unit tests of these rooms: conformance and
integration tests, and from this file random programs and torch's operators.

``python -m tests.conformance.ablation LEDGER --reach`` runs the items, in processes of
their own, and notes which parts each enters. ``... LEDGER`` then switches off one part
after the other, the longest first, and runs up to ``MAX_ITEMS`` items that enter it,
until two fail. Both go on where they were stopped; ``--share 0/2`` takes every second.
``... LEDGER --table`` prints the result.
"""

import argparse
import ast
import builtins
import functools
import gc
import importlib.abc
import importlib.machinery
import itertools
import json
import mmap
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "meta_magic"
ROOMS: Final = ("recording", "replaying", "session")
CORPORA: Final = ("tests/conformance", "tests/integration")
PYTHON_FILES: Final = f"python_files=test_*.py {Path(__file__).name}"
"""A file that is given beside its folder is not collected, if its name is another."""

MIN_LINES: Final = 3
"""An ``if`` with a shorter body is no part of its own."""

SEED, N_PROGRAMS = 424, 300
MAX_SECONDS: Final = 8.0
"""An item that takes longer is left out: it would run hundreds of times."""

PATIENCE: Final = 20.0
"""Seconds after which an item that does not end has failed."""

SECONDS_A_PART: Final = 60.0
MAX_ITEMS: Final = 20
AT_ONCE: Final = 8
"""Items of one function that run in one process; the later ones find full caches."""

N_FAILURES: Final = 2
STRUCTURE: Final = frozenset({"__init__", "__post_init__", "__exit__"})
EMPTY: Final = {
    "None": "None",
    "bool": "False",
    "str": "''",
    "int": "0",
    "tuple": "()",
    "Sequence": "()",
    "list": "[]",
    "dict": "{}",
    "Mapping": "{}",
    "set": "set()",
    "frozenset": "frozenset()",
}
"""What a function returns that is switched off, by the first word of its annotation."""


class Part(NamedTuple):
    """One part.

    Attributes:
        file: Below the package.
        name: Qualified name of the function, with the condition of an ``if``.
        line: Its first line.
        n_lines: How many lines it has.
        off: What it does when it is switched off; "" for an ``if``.
    """

    file: str
    name: str
    line: int
    n_lines: int
    off: str

    @property
    def key(self) -> str:
        """What says of a part which one it is, also when lines have moved."""
        return f"{self.file}: {self.name} -> {self.off}"


def find_off(node: ast.FunctionDef) -> list[str]:
    """Return the statements that a function may be when switched off; [] if none."""
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    own = [*walk_own(node)]
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own):
        is_context = any("context" in ast.unparse(d) for d in node.decorator_list)
        return ["yield; return" if is_context else "return"]
    if any(isinstance(n, ast.Name) and n.id == "NotImplemented" for n in own):
        return ["return NotImplemented"]
    if returns == "bool":
        return ["return False", "return True"]
    if "None" in returns or returns == "NoReturn":
        return ["return None"]
    for first in [a for a in node.args.args if a.arg not in {"self", "cls"}][:1]:
        kind = "" if first.annotation is None else ast.unparse(first.annotation)
        if kind == returns or first.arg == "returned":
            return [f"return {first.arg}"]
    value = EMPTY.get(returns.partition("[")[0])
    return [] if value is None else [f"return {value}"]


def walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, without the functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield child
            yield from walk_own(child)


class Finder(ast.NodeVisitor):
    """Finds the parts of a file.

    Attributes:
        parts: The parts, each with its node.
    """

    def __init__(self, file: str) -> None:
        self.file, self.names = file, list[str]()
        self.parts: list[tuple[Part, Any]] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.names.append(node.name)
        first = min(node.lineno, *(d.lineno for d in node.decorator_list), node.lineno)
        n_lines = (node.end_lineno or 0) - first + 1
        is_empty = len(node.body) == 1 and isinstance(node.body[0], ast.Expr)
        for off in [] if is_empty or node.name in STRUCTURE else find_off(node):
            gives_itself = node.name == "__enter__" and "Self" in ast.unparse(node)
            self.add(node, "return self" if gives_itself else off, first, n_lines)
        self.generic_visit(node)
        self.names.pop()

    def visit_If(self, node: ast.If) -> None:
        n_lines = (node.body[-1].end_lineno or 0) - node.body[0].lineno + 1
        if self.names and n_lines >= MIN_LINES:
            self.add(node, "", node.lineno, n_lines + 1)
        self.generic_visit(node)

    def add(self, node: Any, off: str, line: int, n_lines: int) -> None:
        name = ".".join(self.names)
        if isinstance(node, ast.If):
            name += f" if {ast.unparse(node.test)}"
        self.parts.append((Part(self.file, name, line, n_lines, off), node))


def list_files() -> list[Path]:
    """Return the files of the rooms."""
    return sorted(p for room in ROOMS for p in (PACKAGE / room).rglob("*.py"))


def parse(path: Path) -> tuple[ast.Module, list[tuple[Part, Any]]]:
    """Return the code of a file, and its parts."""
    tree = ast.parse(path.read_text())
    finder = Finder(path.relative_to(PACKAGE).as_posix())
    finder.visit(tree)
    return tree, finder.parts


@functools.cache
def find_parts() -> dict[Part, int]:
    """Return the number of each part."""
    parts = (part for path in list_files() for part, _ in parse(path)[1])
    return {part: number for number, part in enumerate(parts)}


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a file of the rooms so that its parts can be switched off."""

    def get_code(self, fullname: str) -> Any:
        tree, parts = parse(Path(self.path))
        contexts = {}
        for part, node in parts:
            number = find_parts()[part]
            if isinstance(node, ast.If):
                is_on = ast.parse(f"__is_on__({number})", mode="eval").body
                node.test = ast.BoolOp(ast.And(), [node.test, is_on])
                ast.fix_missing_locations(ast.copy_location(node.test, node))
                continue
            put_first(node, number, part.off)
            if node.name == "__enter__":
                contexts[part.name.split(".")[-2]] = number
        for holder in ast.walk(tree):
            number = contexts.get(getattr(holder, "name", ""))
            for node in getattr(holder, "body", ()) if number is not None else ():
                if getattr(node, "name", "") == "__exit__":
                    put_first(node, number, "return None")
        return compile(tree, self.path, "exec", dont_inherit=True)


def put_first(node: ast.FunctionDef, number: int, off: str) -> None:
    """Let a function note that it was entered, and return at once if it is off."""
    text = f"def f():\n  __seen__[{number}] = 1\n  if __off__[{number}]: {off}"
    added: list[ast.stmt] = ast.parse(text).body[0].body  # type: ignore[attr-defined]
    at = 1 if ast.get_docstring(node) is not None else 0
    line = node.body[min(at, len(node.body) - 1)].lineno
    for inner in (n for statement in added for n in ast.walk(statement)):
        if hasattr(inner, "lineno"):
            inner.lineno = inner.end_lineno = line
    node.body[at:at] = added


class Importer(importlib.abc.MetaPathFinder):
    """Has the files of the rooms loaded by ``Loader``."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith(tuple(f"meta_magic.{room}" for room in ROOMS)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


def instrument() -> None:
    """Load the rooms from now on so that their parts can be switched off."""
    n = len(find_parts())
    seen, off = mmap.mmap(-1, n), bytearray(n)  # children of items write into ``seen``

    def is_on(number: int) -> bool:
        seen[number] = 1
        return not off[number]

    vars(builtins).update(__seen__=seen, __off__=off, __is_on__=is_on)
    sys.meta_path.insert(0, Importer())


class Ran(NamedTuple):
    """What became of an item: whether it failed, its time, the parts it entered."""

    has_failed: bool
    seconds: float
    seen: Sequence[int]


def run_apart(items: Sequence[Any], off: int | None) -> Iterator[tuple[Any, Ran]]:
    """Yield items with what became of them, one after another in a child.

    An item that does not end is the last.
    """
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            run_here(items, off, there)
        finally:
            os._exit(0)
    os.close(there)
    try:
        with os.fdopen(here, "rb") as lines:
            for item in items:
                ready, _, _ = select.select([lines], [], [], PATIENCE)
                line = lines.readline() if ready else b""
                yield item, Ran(*json.loads(line)) if line else Ran(True, PATIENCE, ())
                if not line:
                    return
    finally:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_here(items: Sequence[Any], off: int | None, there: int) -> None:
    """Run items with a part switched off, and write what became of each."""
    from _pytest.runner import runtestprotocol

    seen = vars(builtins)["__seen__"]
    if off is not None:
        vars(builtins)["__off__"][off] = 1
    for item in items:
        seen[:] = bytes(len(seen))
        started = time.perf_counter()
        reports = runtestprotocol(item, log=False, nextitem=None)
        seconds = round(time.perf_counter() - started, 3)
        found = [n for n, is_seen in enumerate(bytes(seen)) if is_seen and off is None]
        ran = Ran(any(report.failed for report in reports), seconds, found)
        os.write(there, json.dumps(ran).encode() + b"\n")


class Ablation:
    """Runs the items that pytest collects, instead of pytest."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.known = read(options.ledger)

    def write(self, **found: Any) -> None:
        with self.options.ledger.open("a") as lines:
            lines.write(json.dumps(found) + "\n")

    def share(self, everything: Sequence[Any]) -> Sequence[Any]:
        number, of = map(int, self.options.share.split("/"))
        return everything[number::of]

    def pytest_runtestloop(self, session: Any) -> bool:
        for path in list_files():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts))
        gc.collect()
        gc.freeze()  # else each child copies all memory when it collects garbage
        if self.options.reach:
            self.note_reach(session.items)
        else:
            self.switch_off({item.nodeid: item for item in session.items})
        return True

    def note_reach(self, items: Sequence[Any]) -> None:
        done = {it["item"] for it in self.known if "item" in it}
        todo = [item for item in items if item.nodeid not in done]
        batches: list[Sequence[Any]] = []
        for _, group in itertools.groupby(todo, lambda it: it.nodeid.split("[")[0]):
            many = [*group]
            batches += [many[at : at + AT_ONCE] for at in range(0, len(many), AT_ONCE)]
        random.Random(0).shuffle(batches)  # so that a part of them says something
        for batch in self.share(batches):
            for item, ran in run_apart(batch, None):
                self.write(item=item.nodeid, **ran._asdict())

    def switch_off(self, items: dict[str, Any]) -> None:
        reach = gather_reach(self.known)
        done = {it["part"] for it in self.known if "part" in it}
        for part in self.share(sorted(find_parts(), key=lambda it: -it.n_lines)):
            if part.key in done or self.options.only not in part.key:
                continue
            todo = [items[n] for n in take_turns(reach.get(part.key, {})) if n in items]
            failed, n_run = self.run_without(part, todo[:MAX_ITEMS])
            self.write(part=part.key, reached=len(todo), run=n_run, failed=failed)

    def run_without(self, part: Part, items: Sequence[Any]) -> tuple[list[str], int]:
        """Return the items that fail without a part, and how many were run."""
        failed, n_run, end = list[str](), 0, time.monotonic() + SECONDS_A_PART
        while n_run < len(items):
            for item, ran in run_apart(items[n_run:], find_parts()[part]):
                n_run += 1
                failed += [item.nodeid] * ran.has_failed
                if len(failed) == N_FAILURES or time.monotonic() > end:
                    return failed, n_run
        return failed, n_run


def read(ledger: Path) -> list[dict[str, Any]]:
    """Return what was found before."""
    return [json.loads(line) for line in ledger.open()] if ledger.exists() else []


def gather_reach(known: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the items that enter each part, with their seconds."""
    reach: dict[str, dict[str, float]] = {part.key: {} for part in find_parts()}
    keys = [*reach]
    for it in known:
        if "item" in it and not it["has_failed"] and it["seconds"] < MAX_SECONDS:
            for number in it["seen"]:
                reach[keys[number]][it["item"]] = it["seconds"]
    return reach


def take_turns(seconds: dict[str, float]) -> list[str]:
    """Return items; files take turns, in a file its functions; cheap ones first."""
    order = sorted(seconds, key=seconds.__getitem__)
    for end in ("[", "::"):
        n_before = Counter[str]()
        ranked = []
        for at, nodeid in enumerate(order):
            group = nodeid.partition(end)[0]
            ranked.append((n_before[group], at, nodeid))
            n_before[group] += 1
        order = [nodeid for *_, nodeid in sorted(ranked)]
    return order


def print_table(known: Sequence[dict[str, Any]]) -> None:
    """Print a row for each file, and the parts that no item misses."""
    reach = gather_reach(known)
    found = {it["part"]: it for it in known if "part" in it}
    rows: dict[str, Counter[str]] = {}
    unmissed = []
    for part in find_parts():
        it, row = found.get(part.key), rows.setdefault(part.file, Counter())
        row["parts"] += 1
        row["entered"] += bool(reach[part.key])
        if it is not None and it["failed"]:
            row["missed"] += 1
        elif it is not None:
            n_items = f"{it['run']} of {len(reach[part.key])}"
            name = f"{part.file}:{part.line} {part.key.partition(': ')[2]}"
            unmissed.append(f"- {part.n_lines} lines, {n_items} items: {name}")
    print("| file | parts | entered by an item | missed by one |\n|---|--:|--:|--:|")
    for file, row in rows.items():
        print(f"| {file} | {row['parts']} | {row['entered']} | {row['missed']} |")
    print(
        "\nNot missed, with the items that ran without the part:\n", *unmissed, sep="\n"
    )


def main() -> None:
    """Run items, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--reach", action="store_true", help="note who enters what")
    parser.add_argument("--table", action="store_true", help="print what was found")
    parser.add_argument("--share", default="0/1", help="which of how many runs this is")
    parser.add_argument("--only", default="", help="parts whose key has this text")
    parser.add_argument("corpora", nargs="*", default=CORPORA)
    options = parser.parse_intermixed_args()
    if options.table:
        print_table(read(options.ledger))
        return
    instrument()
    given = ["-q", "-p", "no:cacheprovider", "-n", "0", "--assert=plain"]
    given += ["-o", PYTHON_FILES]
    marks = "not sweep and not kernel and not browser"
    plugins = [Ablation(options)]
    sys.exit(pytest.main([*given, "-m", marks, *options.corpora], plugins=plugins))


def pytest_generate_tests(metafunc: Any) -> None:
    """Give each operator in float32, and in one other dtype in turn."""
    if "operator" in metafunc.fixturenames:
        from tests.conformance.operator_samples import OPERATORS, full_name
        from tests.conformance.operator_sweep import DTYPES

        pairs = [
            (operator, dtype)
            for number, operator in enumerate(OPERATORS)
            for dtype in {DTYPES[0], DTYPES[number % len(DTYPES)]}
            if dtype in operator.dtypes
        ]
        names = [f"{full_name(operator)}-{dtype}" for operator, dtype in pairs]
        metafunc.parametrize(("operator", "dtype"), pairs, ids=names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(N_PROGRAMS))
def test_a_random_program_is_recorded_as_it_runs(number: int) -> None:
    from tests.conformance.fuzz.checking import check
    from tests.conformance.fuzz.programs import make_program

    assert not check(make_program(SEED, number))


@pytest.mark.filterwarnings("ignore")
def test_an_operator_is_recorded_as_it_runs(operator: Any, dtype: Any) -> None:
    from tests.conformance.operator_sweep import Outcome, run_sample

    sample = next(iter(operator.sample_inputs("cpu", dtype)))
    inputs = sample.input, sample.args, sample.kwargs
    outcomes = run_sample(operator, inputs, ["record"])
    assert set(outcomes.values()) <= {Outcome()}


if __name__ == "__main__":
    main()
