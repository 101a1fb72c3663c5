"""Run a trace's block again in a child, with integers that know where they are written.

:func:`trace_block` rewrites the block's syntax tree: ``x = torch.ones(4, n)`` becomes
``x = note(torch.ones(written(0), note(n)))``, more or less. ``written`` returns the
literal as a traced number, ``note`` keeps the integers that an expression evaluated to.
Lines and columns stay. Read :func:`ask_runs` first.

:class:`CallObserver` keeps each call of torch that runs, with its traced numbers.
"""

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, MethodWrapperType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.traced_numbers import (
    REPLACEMENTS,
    Given,
    SizeOf,
    Worked,
    Written,
    regain,
    strip,
    strip_nested,
    trace_number,
    trace_returned,
)
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept import function_mode
from meta_magic.torch_private.modes import function_mode_stack
from meta_magic.torch_private.replacing import leave_dynamo_out
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.options import Rerun
from meta_magic.trace.signature import Span
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import pair_defaults, parse_block
from meta_magic.trials.trial import answer_all, answer_block, check_rerun

SHAPE: Final[Any] = Tensor.shape
SIZE: Final[Any] = Tensor.size
NUMEL: Final = frozenset[Any]({Tensor.numel, Tensor.nelement})


@dataclass(slots=True, eq=False)
class Node:
    """A tensor as a call returned it; a write in place makes a new node.

    Attributes:
        call: The call that returned it; None for a tensor from outside of the block.
    """

    tensor: Tensor
    call: "ObservedCall | None"
    output: int
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = _read_shape(self.tensor)


@dataclass(slots=True, eq=False)
class ObservedCall:
    """A call of a function of torch.

    Attributes:
        index: Among the observed calls; -1 - n for the operators from n on.
        args: Positional arguments: numbers are traced, tensors are nodes.
        kwargs: Keyword arguments, likewise.
        line: The innermost line of the block's file; None if there is none.
        is_inside: Whether ``outputs`` are what its operators made, one after another.
        rows: The indexes of the operators that it ran.
    """

    index: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int | None
    outputs: list[Node] = field(default_factory=list)
    has_failed: bool = False
    is_inside: bool = False
    rows: range = range(0)


class CallObserver(TorchFunctionMode):
    """Keeps the calls of torch's functions, and answers sizes with traced numbers.

    Attributes:
        calls: The calls that returned tensors, and the one that failed, in order.
        by_number: Nodes, by the tensors' numbers in the recording.
        modules: Modules whose methods made a call, by ``id``.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.calls: list[ObservedCall] = []
        self.by_number: dict[int, Node] = {}
        self.modules: dict[int, nn.Module] = {}
        self._file = file
        self._nodes: dict[int, Node] = {}
        self._by_storage: dict[int, Node] = {}
        function_mode.frame_at = _find_caller  # type: ignore[assignment]  # as it is used
        modes = (
            m
            for m in function_mode_stack()
            if isinstance(m, function_mode.FunctionMode)
        )
        self._registry = next(modes).registry

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function; keep its arguments and results."""
        is_attribute = type(func) is MethodWrapperType
        if (is_attribute and func.__self__ is SHAPE) or func is SIZE:
            return self._answer_size(*args, **(kwargs or {}))
        if func in NUMEL:
            return self._answer_numel(*args)
        plain = strip_nested(args), strip_nested(dict(kwargs or {}))
        if is_attribute and not isinstance(returned := func(*plain[0]), Tensor):
            return returned
        line = self._find_line(sys._getframe(1))
        given = self._freeze(args), self._freeze(dict(kwargs or {}))
        call = ObservedCall(len(self.calls), func, *given, line)
        first = self._registry.clock.now
        try:
            returned = returned if is_attribute else func(*plain[0], **plain[1])
        except Exception:
            call.has_failed = True
            self.calls.append(call)
            raise
        tensors = tensors_in(returned)
        if tensors:
            self.calls.append(call)
            call.rows = range(first, self._registry.clock.now)
            self._number(tensors_in(*plain))  # a parameter has none before it is read
            call.outputs = [self._add(t, call, i) for i, t in enumerate(tensors)]
        return returned

    def node_of(self, tensor: Tensor) -> Node:
        """Return the node of a tensor as it is now."""
        node = self._nodes.get(id(tensor))
        if node is not None and node.tensor is tensor:
            return node
        # A parameter is another object than the tensor that it was made of.
        twin = self._by_storage.get(_find_storage(tensor))
        if twin is None or twin.shape != _read_shape(tensor):
            return self._add(tensor, None, 0)
        return self._add(tensor, twin.call, twin.output)

    def _add(self, tensor: Tensor, call: ObservedCall | None, output: int) -> Node:
        node = self._nodes[id(tensor)] = Node(tensor, call, output)
        self._by_storage[_find_storage(tensor)] = node
        self._number([tensor])
        return node

    def _number(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            seen = self._registry.find(tensor)
            if seen is not None:
                self.by_number[seen[0]] = self._nodes[id(tensor)]

    def _answer_size(self, tensor: Tensor, dim: Any = None) -> Any:
        node = self.node_of(tensor)
        sizes = [trace_number(n, SizeOf(node, i)) for i, n in enumerate(node.shape)]
        return torch.Size(sizes) if dim is None else sizes[dim]

    def _answer_numel(self, tensor: Tensor) -> int:
        sizes = self._answer_size(tensor)
        formula = " * ".join(["{}"] * len(sizes)) or "1"
        made: int = trace_number(tensor.numel(), Worked(formula, tuple(sizes)))
        return made

    def _freeze(self, value: Any) -> Any:
        """Return arguments with nodes instead of tensors."""
        kind = type(value)
        if isinstance(value, Tensor):
            return self.node_of(value)
        if kind in (list, tuple):
            return kind(map(self._freeze, value))
        if kind is dict:
            return {key: self._freeze(item) for key, item in value.items()}
        return tuple(value) if kind is torch.Size else regain(value)

    def _find_line(self, frame: FrameType | None) -> int | None:
        """Return the innermost line of the block; keep the modules around it."""
        line = None
        while frame is not None:
            code = frame.f_code
            owner = frame.f_locals.get("self") if code.co_argcount else None
            if isinstance(owner, nn.Module):
                self.modules[id(owner)] = owner
            if code.co_filename == self._file:
                line = line or frame.f_lineno
                if code.co_name == "<module>":
                    break
            frame = frame.f_back
        return line


def _find_caller(depth: int) -> FrameType:
    """Return the frame that called the mode below, or the observer if that did."""
    frame = sys._getframe(depth + 1)
    is_own = frame.f_code is CallObserver.__torch_function__.__code__
    return frame.f_back if is_own and frame.f_back is not None else frame


def _read_shape(tensor: Tensor) -> tuple[int, ...]:
    try:
        return tuple(map(int, tensor.shape))
    except (RuntimeError, ValueError):  # an uninitialized parameter
        return ()


def _find_storage(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, or of the tensor if it has none."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, not made yet
        return id(tensor)
    address: int = address_of_storage(storage)
    return address


Seen: TypeAlias = Mapping[Span, frozenset[int]]
"""The integers that expressions evaluated to, by the expressions' positions."""

LOAD: Final = ast.Load()
NOTE: Final = "__meta_magic_note__"
RETURNED: Final = "__meta_magic_returned__"
WRITTEN: Final = "__meta_magic_written__"
REPLACE: Final = "__meta_magic_replace__"

SOURCES: Final = (ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that may return integers of unknown origin, as ``len(words)`` does."""

NUMBERS: Final = (ast.Name, ast.Attribute, ast.BinOp, ast.Call, ast.Subscript)
"""Expressions whose value may be an integer."""

REPLACED: Final = frozenset(function.__name__ for function in REPLACEMENTS)

MAX_VALUES: Final = 8
"""How many values of one expression are kept."""

MAX_LABEL: Final = 40


class Literal(NamedTuple):
    """An integer in the block's code.

    Attributes:
        column: Where it begins, in UTF-8 bytes from 0.
        label: The name that it is assigned to, or else the expression around it.
    """

    value: int
    line: int
    column: int
    end_column: int
    label: str


VALUES: Final[list[Any]] = []
"""The values of a rewritten block's literals, in the child in which it runs."""

SEEN: Final = defaultdict[Span, set[int]](set)
"""The integers that its expressions evaluated to."""

MADE: Final = dict[int, tuple[Tensor, Span]]()
"""The tensors that its calls returned first, with the calls' positions; by ``id``."""


def note(span: Span, value: Any) -> Any:
    """Return the value of an expression, and keep it if it is an integer."""
    plain = strip(value)
    values = SEEN[span]
    if type(plain) is int and len(values) < MAX_VALUES:
        values.add(plain)
    return value


def note_returned(span: Span, value: Any) -> Any:
    """Return what :func:`note` does; integers of unknown origin get the expression."""
    if isinstance(value, Tensor):  # ``torch.from_numpy`` is seen nowhere else
        MADE.setdefault(id(value), (value, span))
    return trace_returned(note(span, value), span)


def written(number: int) -> Any:
    """Return a literal of the block as a traced number."""
    return VALUES[number]


def replace_function(function: Any) -> Any:
    """Return the function that is called instead of another."""
    try:
        return REPLACEMENTS.get(function, function)
    except TypeError:  # what has no hash
        return function


def find_made(tensor: Tensor) -> Span | None:
    """Return the position of the expression that returned a tensor first."""
    found = MADE.get(id(tensor))
    return None if found is None else found[1]


def set_literals(literals: Sequence[Literal], values: Mapping[int, int]) -> None:
    """Set the literals of a rewritten block before it runs, some to ``values``."""
    own = {
        NOTE: note,
        RETURNED: note_returned,
        WRITTEN: written,
        REPLACE: replace_function,
    }
    vars(builtins).update(own)  # for good: the block runs in a child
    SEEN.clear()
    MADE.clear()
    VALUES[:] = [
        trace_number(values.get(number, literal.value), Written(number))
        for number, literal in enumerate(literals)
    ]


def trace_block(block: ast.Module) -> tuple[ast.Module, tuple[Literal, ...]]:
    """Return a block whose integers are traced, and these; the given one is changed."""
    labels = {  # inner calls come later, and say it better
        id(part): label
        for node in ast.walk(block)
        for part, label in _label_parts(node)
    }
    tracing = _Tracer(labels)
    traced = ast.fix_missing_locations(tracing.visit(block))
    return traced, tuple(tracing.literals)


def _label_parts(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the labels that a node gives its parts."""
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


class _Tracer(ast.NodeTransformer):
    """Replaces each integer literal, and wraps what may be an integer.

    ``labels`` has the labels of literals, by ``id`` of the node.
    """

    def __init__(self, labels: Mapping[int, str]) -> None:
        self.literals: list[Literal] = []
        self._labels = labels

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the nodes inside of a node, then wrap the node."""
        super().generic_visit(node)
        is_read = isinstance(getattr(node, "ctx", LOAD), ast.Load)
        if not is_read or not isinstance(node, NUMBERS):
            return node
        name = RETURNED if isinstance(node, SOURCES) else NOTE
        span = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        return _call(name, node, ast.Constant(span), node)  # type: ignore[arg-type]  # a constant, too

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace an integer literal."""
        if type(node.value) is not int or node.lineno != node.end_lineno:
            return node
        end = node.end_col_offset or node.col_offset
        label = self._labels.get(id(node), "")
        here = node.lineno, node.col_offset, end, label
        self.literals.append(Literal(node.value, *here))
        return _call(WRITTEN, node, ast.Constant(len(self.literals) - 1))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace functions that make new numbers."""
        is_replaced = isinstance(node.func, ast.Name) and node.func.id in REPLACED
        function = node.func
        visited = self.generic_visit(node)
        if is_replaced:
            node.func = _call(REPLACE, function, function)
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
        """Leave an f-string as it is: its parts have no columns before Python 3.12."""
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        """Leave a pattern as it is."""
        return node


def _call(name: str, at: ast.AST, *args: ast.expr) -> ast.Call:
    """Return a call of one of the functions above, at the position of a node."""
    function = ast.copy_location(ast.Name(name, LOAD), at)
    return ast.copy_location(ast.Call(function, list(args), []), at)


T = TypeVar("T")

MAX_DEPTH: Final = 100_000
"""Limit of Python's recursion: a chain of calls is as long as a model."""

SECONDS: Final = 5.0
"""How long a run and its question may take."""


class Run(NamedTuple):
    """A block that ran with traced numbers."""

    trace: Trace
    observer: CallObserver
    literals: Sequence[Literal]
    variables: Mapping[str, Any]


def ask_runs(
    trace: Trace, values: Sequence[Mapping[int, int]], question: Callable[[Run], T]
) -> list[T | TrialError]:
    """Run a trace's block once for each of ``values``, of its literals by index."""
    rerun = check_rerun(trace)
    return answer_all([prepare_run(rerun, own, question) for own in values], SECONDS)


def prepare_run(
    rerun: Rerun,
    values: Mapping[int, int],
    question: Callable[[Run], Any],
    *,
    is_probe: bool = False,
) -> Callable[[], Any]:
    """Return a function that runs a block with traced numbers and asks the question."""
    block, literals = trace_block(parse_block(rerun))
    entered: list[CallObserver] = []

    @contextmanager
    def observe(variables: dict[str, Any]) -> Iterator[None]:
        for name in rerun.before:
            if type(value := variables.get(name)) is int:
                variables[name] = trace_number(value, Given(name))
        set_literals(literals, values)
        with CallObserver(rerun.file) as observer:
            entered.append(observer)
            yield

    def ask(trace: Trace, variables: Mapping[str, Any]) -> Any:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(MAX_DEPTH)
        leave_dynamo_out()
        try:
            return question(Run(trace, entered[0], literals, variables))
        finally:
            sys.setrecursionlimit(before)

    return partial(answer_block, rerun, block, observe, ask, is_probe=is_probe)
