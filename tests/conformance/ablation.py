"""What fails when a part of ``recording``, ``replaying`` or ``session`` is switched off.

A part is a function, a context manager or the body of an ``if``. Switched off, a
function returns at once what stands for nothing (None, False, an empty tuple, its
first argument), a context manager does nothing, and the condition of an ``if`` is
false. The corpora are programs, not the unit tests of these rooms: conformance and
integration tests, and from this file random programs and torch's operators.

``python -m tests.conformance.ablation LEDGER --reach`` runs each item in a process of
its own and writes which parts it enters; without ``--reach`` it runs, for each part,
items that enter it while it is off, until some fail. Both go on where they were
stopped, and ``--share 0/2`` takes every second. ``--table`` prints what was found.
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
CORPORA: Final = ("tests/conformance", "tests/integration", __file__)
MIN_LINES: Final = 3
"""An ``if`` with a shorter body is no part of its own."""

SEED, N_PROGRAMS = 424, 300
MAX_SECONDS: Final = 8.0
"""An item that takes longer is left out: it is run hundreds of times."""

PATIENCE: Final = 20.0
"""Seconds after which an item that does not end has failed."""

SECONDS_A_PART: Final = 20.0
AT_ONCE: Final = 8
N_FAILURES: Final = 2
"""Items that fail until a part counts as missed, and no more are run."""

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
        off: The statement that it is when switched off; "" for an ``if``.
    """

    file: str
    name: str
    line: int
    n_lines: int
    off: str

    @property
    def key(self) -> str:
        return f"{self.file}: {self.name} -> {self.off}"


def find_off(node: ast.FunctionDef) -> list[str]:
    """Return the statements that a function may be when switched off; [] if none."""
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    own = [n for statement in node.body for n in ast.walk(statement)]
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own):
        decorators = map(ast.unparse, node.decorator_list)
        return (
            ["yield; return"] if any("context" in d for d in decorators) else ["return"]
        )
    if any(isinstance(n, ast.Name) and n.id == "NotImplemented" for n in own):
        return ["return NotImplemented"]
    if returns == "bool":
        return ["return False", "return True"]
    first = next((a for a in node.args.args if a.arg not in {"self", "cls"}), None)
    if "None" in returns or returns == "NoReturn":
        return ["return None"]
    if first is not None and first.annotation is not None:
        if ast.unparse(first.annotation) == returns or first.arg == "returned":
            return [f"return {first.arg}"]
    value = EMPTY.get(returns.partition("[")[0])
    return [] if value is None else [f"return {value}"]


class Finder(ast.NodeVisitor):
    """Finds the parts of a file, and what is put into the code for each.

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
        is_empty = isinstance(node.body[-1], ast.Expr) and len(node.body) == 1
        is_structure = node.name in {"__init__", "__post_init__", "__exit__"}
        if node.name == "__enter__":
            returned = "self" if "Self" in ast.unparse(node.returns or node) else "None"
            self.add(node, f"return {returned}", "__enter__")
        elif not is_empty and not is_structure:
            for off in find_off(node):
                self.add(node, off)
        self.generic_visit(node)
        self.names.pop()

    def visit_If(self, node: ast.If) -> None:
        n_lines = (node.body[-1].end_lineno or 0) - node.body[0].lineno + 1
        if self.names and n_lines >= MIN_LINES:
            self.add(node, "", f"if {ast.unparse(node.test)}", n_lines + 1)
        self.generic_visit(node)

    def add(self, node: Any, off: str, name: str = "", n_lines: int = 0) -> None:
        first = min(
            [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]
        )
        names = ".".join(self.names) + (f" {name}" if name.startswith("if") else "")
        n_lines = n_lines or node.end_lineno - first + 1
        self.parts.append((Part(self.file, names, first, n_lines, off), node))


@functools.cache
def find_parts() -> tuple[Part, ...]:
    """Return all parts."""
    return tuple(part for path in list_files() for part, _ in parse(path)[1])


def list_files() -> list[Path]:
    """Return the files of the rooms."""
    return sorted(p for room in ROOMS for p in (PACKAGE / room).rglob("*.py"))


def parse(path: Path) -> tuple[ast.Module, list[tuple[Part, Any]]]:
    """Return the code of a file, and its parts."""
    tree = ast.parse(path.read_text())
    finder = Finder(path.relative_to(PACKAGE).as_posix())
    finder.visit(tree)
    return tree, finder.parts


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a file of the rooms so that its parts can be switched off."""

    def get_code(self, fullname: str) -> Any:
        tree, parts = parse(Path(self.path))
        exits = {}
        for part, node in parts:
            number = number_by_part[part]
            if isinstance(node, ast.If):
                test = ast.parse(f"__is_on__({number})", mode="eval").body
                node.test = ast.BoolOp(ast.And(), [node.test, test])
                ast.fix_missing_locations(ast.copy_location(node.test, node))
                continue
            if node.name == "__enter__":
                exits[part.name.rpartition(".")[0]] = number
            put_first(node, number, part.off)
        for holder in ast.walk(tree):
            if isinstance(holder, ast.ClassDef) and holder.name in exits:
                for node in holder.body:
                    if isinstance(node, ast.FunctionDef) and node.name == "__exit__":
                        put_first(node, exits[holder.name], "return None")
        return compile(tree, self.path, "exec", dont_inherit=True)


def put_first(node: ast.FunctionDef, number: int, off: str) -> None:
    """Let a function note that it was entered, and return at once if it is off."""
    at = 1 if ast.get_docstring(node) is not None else 0
    text = f"__seen__[{number}] = 1\nif __off__[{number}]: {off}"
    line = node.body[min(at, len(node.body) - 1)].lineno
    added = ast.parse(text).body if "yield" not in off else parse_inside(text)
    for statement in added:
        for inner in ast.walk(statement):
            if hasattr(inner, "lineno"):
                inner.lineno = inner.end_lineno = line
    node.body[at:at] = added


def parse_inside(text: str) -> list[ast.stmt]:
    """Return statements that may yield."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    (function,) = ast.parse(f"def f():\n{lines}").body
    return function.body  # type: ignore[attr-defined]


class Importer(importlib.abc.MetaPathFinder):
    """Has the files of the rooms loaded by ``Loader``."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith(tuple(f"meta_magic.{room}" for room in ROOMS)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


number_by_part = {part: number for number, part in enumerate(find_parts())}


def instrument() -> None:
    """Load the rooms from now on so that their parts can be switched off."""
    n = len(number_by_part)
    seen, off = mmap.mmap(-1, n), bytearray(n)  # children of items write into ``seen``

    def is_on(number: int) -> bool:
        seen[number] = 1
        return not off[number]

    vars(builtins).update(__seen__=seen, __off__=off, __is_on__=is_on)
    sys.meta_path.insert(0, Importer())


class Ran(NamedTuple):
    """What became of an item."""

    has_failed: bool
    seconds: float
    seen: tuple[int, ...]


def run_apart(items: Sequence[Any], off: int | None) -> Iterator[Ran]:
    """Yield what became of items that run one after another in a child.

    An item that does not end is the last.
    """
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            answer(items, off, there)
        finally:
            os._exit(0)
    os.close(there)
    try:
        with os.fdopen(here, "rb") as lines:
            for _ in items:
                ready, _, _ = select.select([lines], [], [], PATIENCE)
                line = lines.readline() if ready else b""
                yield Ran(*json.loads(line)) if line else Ran(True, PATIENCE, ())
                if not line:
                    return
    finally:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def answer(items: Sequence[Any], off: int | None, there: int) -> None:
    """Run items, and write what became of each."""
    seen = vars(builtins)["__seen__"]
    if off is not None:
        vars(builtins)["__off__"][off] = 1
    for item in items:
        seen[:] = bytes(len(seen))
        started = time.perf_counter()
        reports = pytest_runner().runtestprotocol(item, log=False, nextitem=None)
        ran = Ran(
            any(report.failed for report in reports),
            round(time.perf_counter() - started, 3),
            tuple(n for n, is_seen in enumerate(bytes(seen)) if is_seen),
        )
        os.write(there, json.dumps(ran).encode() + b"\n")


def pytest_runner() -> Any:
    """Return the module of pytest that runs an item."""
    import _pytest.runner

    return _pytest.runner


class Ablation:
    """Runs the items that pytest collects, instead of pytest."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.known = read(options.ledger)

    def write(self, **found: Any) -> None:
        with self.options.ledger.open("a") as lines:
            lines.write(json.dumps(found) + "\n")

    def share(self, all_of_them: Sequence[Any]) -> Sequence[Any]:
        number, of = map(int, self.options.share.split("/"))
        return all_of_them[number::of]

    def pytest_runtestloop(self, session: Any) -> bool:
        for path in list_files():
            importlib.import_module(
                ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            )
        gc.collect()
        gc.freeze()  # else each child copies all memory when it collects garbage
        items = {item.nodeid: item for item in session.items}
        if self.options.reach:
            done = {it["item"] for it in self.known if "item" in it}
            todo = [item for nodeid, item in items.items() if nodeid not in done]
            groups = itertools.groupby(todo, get_function)
            batches = [batch for _, group in groups for batch in split([*group])]
            random.Random(0).shuffle(batches)  # so that a part of them says something
            for batch in self.share(batches):
                self.write_reach(batch)
        else:
            self.switch_off(items)
        return True

    def write_reach(self, items: Sequence[Any]) -> None:
        for item, ran in zip(items, run_apart(items, None), strict=False):
            found = {"failed": ran.has_failed, "seconds": ran.seconds}
            self.write(item=item.nodeid, **found, parts=ran.seen)

    def switch_off(self, items: dict[str, Any]) -> None:
        reach = gather_reach(self.known)
        done = {it["part"] for it in self.known if "part" in it}
        for part in self.share(find_parts()):
            if part.key in done or (
                self.options.only and self.options.only not in part.key
            ):
                continue
            nodeids = take_turns(reach.get(part.key, {}))
            failed, n_run = self.run_without(
                part, [items[n] for n in nodeids if n in items]
            )
            self.write(part=part.key, reached=len(nodeids), run=n_run, failed=failed)

    def run_without(self, part: Part, items: Sequence[Any]) -> tuple[list[str], int]:
        """Return the items that fail without a part, and how many were run."""
        failed, n_run, started = list[str](), 0, time.monotonic()
        while n_run < len(items):
            rest = items[n_run : n_run + 60]
            for item, ran in zip(
                rest, run_apart(rest, number_by_part[part]), strict=False
            ):
                n_run += 1
                if ran.has_failed:
                    failed.append(item.nodeid)
                is_late = time.monotonic() > started + SECONDS_A_PART
                if len(failed) == N_FAILURES or is_late:
                    return failed, n_run
        return failed, n_run


def get_function(item: Any) -> str:
    """Return the name of an item without its parameters."""
    return str(item.nodeid.partition("[")[0])


def split(items: list[Any]) -> list[list[Any]]:
    """Split items of one function: a child runs so many, the later ones warm."""
    return [items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE)]


def take_turns(seconds: dict[str, float]) -> list[str]:
    """Return items, cheap ones first, and each function's first before its second."""
    n_before = Counter[str]()
    ranked = []
    for nodeid in sorted(seconds, key=seconds.__getitem__):
        function = nodeid.partition("[")[0]
        ranked.append((n_before[function], seconds[nodeid], nodeid))
        n_before[function] += 1
    return [nodeid for *_, nodeid in sorted(ranked)]


def read(ledger: Path) -> list[dict[str, Any]]:
    """Return what was found before."""
    return [json.loads(line) for line in ledger.open()] if ledger.exists() else []


def gather_reach(known: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the items that enter each part, with a rank: cheap and special ones first."""
    reach: dict[str, dict[str, float]] = {}
    for it in known:
        if "item" in it and not it["failed"] and it["seconds"] < MAX_SECONDS:
            for number in it["parts"]:
                key = find_parts()[number].key
                reach.setdefault(key, {})[it["item"]] = it["seconds"]
    return reach


def print_table(known: Sequence[dict[str, Any]]) -> None:
    """Print the parts that nothing misses, and how many there are of each kind."""
    reach = gather_reach(known)
    found = {it["part"]: it for it in known if "part" in it}
    for part in find_parts():
        it = found.get(part.key)
        if it is not None and not it["failed"]:
            n_reached = len(reach.get(part.key, ()))
            print(
                f"{part.n_lines:>4} {n_reached:>5} {it['run']:>5}  {part.file}:{part.line} {part.key.partition(': ')[2]}"
            )


def main() -> None:
    """Run items, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("corpora", nargs="*", default=CORPORA)
    options = parser.parse_intermixed_args()
    if options.table:
        print_table(read(options.ledger))
        return
    instrument()
    arguments = ["-q", "--assert=plain", "-p", "no:cacheprovider", "-n", "0"]
    arguments += ["-m", "not sweep and not kernel and not browser", *options.corpora]
    sys.exit(pytest.main(arguments, plugins=[Ablation(options)]))


def pytest_generate_tests(metafunc: Any) -> None:
    """Give the tests of this file their operators and numbers."""
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
def test_program(number: int) -> None:
    """A random program is the same recorded."""
    from tests.conformance.fuzz.checking import check
    from tests.conformance.fuzz.programs import make_program

    assert not check(make_program(SEED, number))


@pytest.mark.filterwarnings("ignore")
def test_operator(operator: Any, dtype: Any) -> None:
    """The first samples of an operator are recorded as the CPU runs them."""
    import itertools

    from tests.conformance.operator_sweep import Outcome, run_sample

    for sample in itertools.islice(operator.sample_inputs("cpu", dtype), 1):
        inputs = sample.input, sample.args, sample.kwargs
        for outcome in run_sample(operator, inputs, ["record"]).values():
            assert outcome == Outcome()


if __name__ == "__main__":
    main()
