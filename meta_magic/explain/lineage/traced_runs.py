"""Run a trace's block again in children, its numbers knowing where they come from."""

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.observed_calls import CallObserver
from meta_magic.explain.lineage.traced_numbers import (
    STAND_INS,
    Written,
    strip,
    trace_number,
)
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block
from meta_magic.trials.trial import Variant, ask_variants, check_rerun

Span: TypeAlias = tuple[int, int, int | None, int | None]
"""First line, first column, last line, column after the last."""

Seen: TypeAlias = Mapping[Span, frozenset[int]]
"""What expressions stood for, by where they are."""

LOAD: Final = ast.Load()

NOTE: Final = "__meta_magic_note__"
WRITTEN: Final = "__meta_magic_written__"
STAND_IN: Final = "__meta_magic_stand_in__"

NUMBERS: Final = (ast.Name, ast.Attribute, ast.BinOp, ast.Call, ast.Subscript)
"""Expressions that may stand for an integer."""

REPLACED: Final = frozenset(function.__name__ for function in STAND_INS)

MAX_VALUES: Final = 8
"""How many values of one expression are kept."""

MAX_LABEL: Final = 40


class Literal(NamedTuple):
    """An integer that a block says.

    Attributes:
        value: The integer.
        line: Its line.
        column: Where it begins, in UTF-8 bytes from 0.
        end_column: Where it ends.
        label: What it is called there: the name that it is given, or else the
            expression that it stands in.
    """

    value: int
    line: int
    column: int
    end_column: int
    label: str


class TracedBlock(NamedTuple):
    """A block, rewritten.

    Attributes:
        block: Its statements.
        literals: The integers that it says.
    """

    block: ast.Module
    literals: tuple[Literal, ...]


class Now(NamedTuple):
    """What a rewritten block runs with, in the child that it runs in.

    Attributes:
        values: What its integers are.
        seen: What its expressions stood for.
    """

    values: list[Any]
    seen: dict[Span, set[int]]


NOW: Final = Now([], defaultdict(set))


def note(span: Span, value: Any) -> Any:
    """Return what an expression stands for, and keep it if it is an integer."""
    plain = strip(value)
    values = NOW.seen[span]
    if type(plain) is int and len(values) < MAX_VALUES:
        values.add(plain)
    return value


def written(number: int) -> Any:
    """Return the integer that a block says, with its origin."""
    return NOW.values[number]


def stand_in(function: Any) -> Any:
    """Return what is to be called instead of a function."""
    try:
        return STAND_INS.get(function, function)
    except TypeError:  # what has no hash
        return function


def read_seen() -> Seen:
    """Return what was noted."""
    return {span: frozenset(values) for span, values in NOW.seen.items() if values}


def span_of(node: ast.expr) -> Span:
    """Return where an expression is."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def set_literals(literals: Sequence[Literal], values: Mapping[int, int]) -> None:
    """Say what the integers of a rewritten block are, before it runs.

    Args:
        literals: As they are written.
        values: What some of them are instead.
    """
    NOW.seen.clear()
    NOW.values[:] = [
        trace_number(values.get(number, literal.value), Written(number))
        for number, literal in enumerate(literals)
    ]


def trace_block(block: ast.Module) -> TracedBlock:
    """Return a block whose numbers know where they are written; it is changed."""
    tracing = Tracing(label_literals(block))
    body = tracing.visit(block).body
    names = {"note": NOTE, "written": WRITTEN, "stand_in": STAND_IN}
    given = [ast.alias(name, alias) for name, alias in names.items()]
    head = ast.ImportFrom(__name__, given, 0)
    later = [n for n in body if isinstance(n, ast.ImportFrom) and is_future(n)]
    rest = [statement for statement in body if statement not in later]
    whole = ast.Module([*later, head, *rest], [])
    return TracedBlock(ast.fix_missing_locations(whole), tuple(tracing.literals))


def is_future(node: ast.ImportFrom) -> bool:
    """Whether an import has to stand before all else."""
    return node.module == "__future__"


def label_literals(block: ast.Module) -> dict[int, str]:
    """Return what the integers that stand alone are called, by ``id`` of the node."""
    return {
        id(part): label
        for node in ast.walk(block)  # inner calls come later, and say it better
        for part, label in label_parts(node)
    }


def label_parts(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield what the parts of a node are called in it."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        yield node.value, ast.unparse(target)
    if isinstance(node, ast.arguments):
        yield from ((default, one.arg) for one, default in pair_defaults(node))
    if isinstance(node, ast.Call):
        text = ast.unparse(node)
        short = text if len(text) <= MAX_LABEL else f"{ast.unparse(node.func)}(...)"
        for part in (*node.args, *node.keywords):
            yield from ((below, f"in {short}") for below in ast.walk(part))
        yield from ((one.value, one.arg) for one in node.keywords if one.arg)


def pair_defaults(node: ast.arguments) -> list[tuple[ast.arg, ast.expr]]:
    """Return the arguments of a function that have defaults, with these."""
    named = [*node.posonlyargs, *node.args]
    pairs = [*zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)]
    alone = zip(node.kwonlyargs, node.kw_defaults, strict=True)
    return [*pairs, *((argument, value) for argument, value in alone if value)]


class Tracing(ast.NodeTransformer):
    """Has each integer be traced, and what may stand for one noted.

    Args:
        labels: What integers are called, by ``id`` of the node.

    Attributes:
        literals: The integers met.
    """

    def __init__(self, labels: Mapping[int, str]) -> None:
        self.literals: list[Literal] = []
        self._labels = labels

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is below a node, and wrap it itself."""
        super().generic_visit(node)
        is_read = isinstance(getattr(node, "ctx", LOAD), ast.Load)
        if not is_read or not isinstance(node, NUMBERS):
            return node
        return call(NOTE, node, ast.Constant(span_of(node)), node)  # type: ignore[arg-type]  # a constant, too

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Have an integer know where it is written."""
        if type(node.value) is not int or node.lineno != node.end_lineno:
            return node
        end = node.end_col_offset or node.col_offset
        label = self._labels.get(id(node), "")
        here = node.lineno, node.col_offset, end, label
        self.literals.append(Literal(node.value, *here))
        return call(WRITTEN, node, ast.Constant(len(self.literals) - 1))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace what makes numbers of its own."""
        is_replaced = isinstance(node.func, ast.Name) and node.func.id in REPLACED
        function = node.func
        visited = self.generic_visit(node)
        if is_replaced:
            node.func = call(STAND_IN, function, function)
        return visited

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave an annotation as it is."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Leave an annotation as it is."""
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Leave a text as it is: its parts have no columns before Python 3.12."""
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        """Leave a pattern as it is."""
        return node


def call(name: str, at: ast.AST, *args: ast.expr) -> ast.Call:
    """Return a call of one of our functions, in the place of a node."""
    function = ast.copy_location(ast.Name(name, LOAD), at)
    return ast.copy_location(ast.Call(function, list(args), []), at)


T = TypeVar("T")

MAX_DEPTH: Final = 100_000
"""How many calls of Python may be within each other: a chain is as long as a model."""

SECONDS: Final = 5.0
"""What a run, and what is asked of it, may take."""


class Run(NamedTuple):
    """A block that ran with traced numbers.

    Attributes:
        trace: What was recorded.
        observer: Has the calls.
        literals: The numbers that the block says.
        variables: Its variables when it had run, or raised.
    """

    trace: Trace
    observer: CallObserver
    literals: Sequence[Literal]
    variables: Mapping[str, Any]


def ask_run(trace: Trace, question: Callable[[Run], T]) -> T:
    """Run a trace's block with traced numbers in a child, and return an answer.

    Args:
        trace: The trace.
        question: Returns what can be pickled.

    Raises:
        TrialError: It cannot be run again; the message says why.
    """
    (answered,) = ask_runs(trace, [{}], question)
    if isinstance(answered, TrialError):
        raise answered
    return answered


def ask_runs(
    trace: Trace,
    values: Sequence[Mapping[int, int]],
    question: Callable[[Run], T],
) -> list[T | TrialError]:
    """Run a trace's block several times, its numbers being others, all at once.

    Args:
        trace: The trace.
        values: For each run what some of the numbers that the block says are instead.
        question: As of :func:`ask_run`.

    Raises:
        TrialError: It cannot be run again at all.
    """
    rerun = check_rerun(trace)
    variants = [make_variant(rerun, own, question) for own in values]
    return ask_variants(trace, variants, SECONDS)


def list_literals(trace: Trace) -> Sequence[Literal]:
    """Return the numbers that a trace's block says.

    Raises:
        TrialError: It cannot be run again at all.
    """
    return trace_block(parse_block(check_rerun(trace))).literals


def make_variant(
    rerun: Rerun, values: Mapping[int, int], question: Callable[[Run], Any]
) -> Variant:
    """Return a block with traced numbers, and what is asked of its run."""
    block, literals = trace_block(parse_block(rerun))
    entered: list[CallObserver] = []

    @contextmanager
    def observe() -> Iterator[None]:
        set_literals(literals, values)
        with CallObserver(rerun.file) as observer:
            entered.append(observer)
            yield

    def ask(trace: Trace, variables: Mapping[str, Any]) -> Any:
        sys.setrecursionlimit(MAX_DEPTH)
        leave_dynamo_out()
        return question(Run(trace, entered[0], literals, variables))

    return Variant(block, observe, ask)
