"""Annotations of jaxtyping: written for a class, and checked where code has them.

``trace.annotate(Block)`` writes ``def forward(self, x: Float[Tensor, "B T D"]): ...``
(:func:`write_signature`). ``def f(x: Float[Tensor, "b t d"])`` says nothing while the
code runs, unless a decorator checks it. So :func:`check_annotations` records the block
again, and sees each annotated argument, result and variable. Names are compared by
number, and by formula where the recording has names of sizes.
"""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from linecache import getlines
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, get_args, get_origin

from torch import Tensor, broadcast_shapes, nn

from meta_magic.cost.advice.evidence import is_own_file
from meta_magic.errors import TrialError
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.torch_private.modes import function_mode_stack
from meta_magic.trace.calls import ModuleCall, TensorMetadata
from meta_magic.trace.notes import Note, name_cell
from meta_magic.trace.options import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block
from meta_magic.trials.dims import Dims
from meta_magic.trials.size_formulas import evaluate
from meta_magic.trials.slices import list_installed, shorten_path
from meta_magic.trials.trial import answer_all, answer_block, check_rerun

ANY: Final = "_"
"""A size that has no name, or not the same one in all calls."""

ROUNDED: Final = re.compile(r"ceil\((\w+)/(\w+)\)")
MANY: Final = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def write_signature(trace: Trace, of: type[nn.Module] | nn.Module) -> str:
    """Return imports, and the signature of a class's ``forward`` with shapes."""
    kind = of if isinstance(of, type) else type(of)
    every = [one for one in trace.module_calls if one.class_name == kind.__qualname__]
    calls = [call for call in every if call.outputs]
    if not calls:
        raise TrialError(f"the recording has no call of a {kind.__name__}")
    writer = Writer(trace)
    written: list[str] = []
    for index, one in enumerate(inspect.signature(kind.forward).parameters.values()):
        text = ""
        if index and one.kind not in MANY:  # the first one is self
            position = () if one.kind is one.KEYWORD_ONLY else (str(index - 1),)
            paths = {one.name, *position}
            given = [  # a tensor that is the argument itself
                next((tensor for path, tensor in call.inputs if path in paths), None)
                for call in calls
            ]
            text = writer.write(given, is_optional=one.default is None)
        starred = str(one.replace(annotation=one.empty, default=one.empty))
        default = "" if one.default is one.empty else f" = {one.default!r}"
        star = "*, " if one.kind is one.KEYWORD_ONLY and "*" not in str(written) else ""
        written.append(f"{star}{starred}{text and f': {text}'}{default}")
    result = writer.write_result(calls)
    imported = ", ".join(sorted(writer.kinds))
    head = f"from jaxtyping import {imported}\nfrom torch import Tensor\n\n\n"
    arguments = ", ".join(written)
    return f"{head}def forward({arguments}){result and f' -> {result}'}: ...\n"


class Writer:
    """Writes annotations, one argument after the other.

    Attributes:
        kinds: The types of jaxtyping that are used.
    """

    def __init__(self, trace: Trace) -> None:
        self._dims = trace.dims
        self._bound: set[str] = set()
        self.kinds: set[str] = set()

    def write(
        self, given: Sequence[TensorMetadata | None], *, is_optional: bool = False
    ) -> str:
        """Return the annotation of an argument or a result; "" for none."""
        tensors = [tensor for tensor in given if tensor is not None]
        kinds = {find_kind(tensor) for tensor in tensors}
        ranks = {len(tensor.shape) for tensor in tensors}
        is_missing = len(tensors) < len(given)
        if len(kinds) != 1 or (is_missing and not is_optional):
            return ""
        self.kinds |= kinds
        sizes = "..."
        if len(ranks) == 1:
            rows = zip(*map(self._read, tensors), strict=True)
            sizes = " ".join(self._write_size({*row}) for row in rows)
        text = f'{kinds.pop()}[Tensor, "{sizes}"]'
        return f"{text} | None" if is_optional else text

    def write_result(self, calls: Sequence[ModuleCall]) -> str:
        """Return the annotation of what calls return: a tensor, or a tuple of them."""
        paths = {tuple(path for path, _ in call.outputs) for call in calls}
        if len(paths) != 1:
            return ""
        (names,) = paths
        columns = zip(
            *([one for _, one in call.outputs] for call in calls), strict=True
        )
        texts = [self.write(column) for column in columns]
        if names == ("",):
            return texts[0]
        is_tuple = names == tuple(map(str, range(len(names)))) and len(names) > 1
        return f"tuple[{', '.join(texts)}]" if is_tuple and all(texts) else ""

    def _read(self, tensor: TensorMetadata) -> tuple[str, ...]:
        if self._dims is None:
            return tuple(map(str, tensor.shape))
        return self._dims.name(tensor.tensor_id, tensor.shape)

    def _write_size(self, texts: set[str]) -> str:
        """Return a dimension as jaxtyping reads it."""
        if len(texts) > 1:
            return ANY
        text = ROUNDED.sub(r"-(-\1//\2)", texts.pop()).replace(" ", "")
        if text.isidentifier():
            self._bound.add(text)
        names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        return text if names <= self._bound else ANY


def find_kind(tensor: TensorMetadata) -> str:
    """Return the type of jaxtyping that has a tensor's dtype."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return "Complex"
    if dtype.is_floating_point:
        return "Float"
    name = str(dtype).removeprefix("torch.")
    return "Bool" if name == "bool" else "UInt" if name.startswith("u") else "Int"


SEE: Final = "__meta_magic_see__"
FRAME: Final = "__meta_magic_frame__"
SECONDS: Final = 5.0


class AnnotatedTensor(NamedTuple):
    """A tensor with an annotation.

    Attributes:
        frame: The number of the call of the function; names hold within one.
        what: What is annotated: ``x``, or ``the result of forward``.
        dims: The annotated dimensions, such as ``b t d``.
        dtypes: The annotated dtypes; () for any.
        number: Its number in the recording; None if it has none.
        file: The file of a function outside of the block; "" for the block.
    """

    frame: int
    line: int
    what: str
    dims: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    number: int | None
    file: str = ""


def check_annotations(trace: Trace) -> tuple[Note, ...]:
    """Return a note for each line of the user's code whose annotation is wrong.

    Those of the block, and those of the functions of earlier cells and of the user's
    modules that it calls: the note then names the cell or the file.
    """
    try:
        rerun = check_rerun(trace)
        block, seeing = rewrite(rerun)
        if not seeing.n_seen and "jaxtyping" not in sys.modules:
            return ()
        seen: list[AnnotatedTensor] = []

        def add_names(_: object) -> Watcher:
            vars(builtins).update({SEE: partial(see, seen), FRAME: None})
            return Watcher(seen)

        asked = partial(answer_block, rerun, block, add_names, lambda *_: seen)
        (found,) = answer_all([asked], SECONDS)
    except TrialError:
        return ()
    if isinstance(found, TrialError):
        text = f"annotations of shapes were not checked: {found}"
        return (Note(kind="annotation", text=text, line=None, severity="asked for"),)
    notes: dict[tuple[str, int, str], Note] = {}
    for one, text in judge(found, trace.dims):
        name = one.file and (name_cell(one.file) or shorten_path(one.file))
        shown = f"{name}, line {one.line}: {text}" if name else text
        note = Note(kind="annotation", text=shown, line=None if name else one.line)
        notes.setdefault((one.file, one.line, text), note)
    return (*notes.values(),)


def rewrite(rerun: Rerun) -> "tuple[ast.Module, Seeing]":
    """Return a block in which annotated values are seen."""
    seeing = Seeing()
    block = seeing.visit(parse_block(rerun))
    return ast.fix_missing_locations(block), seeing


class Seeing(ast.NodeTransformer):
    """Passes each annotated argument, result and variable to :func:`see`.

    Attributes:
        n_seen: How many annotations may be those of shapes.
    """

    def __init__(self) -> None:
        self.n_seen = 0
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def _see(self, value: ast.expr, annotation: ast.expr, what: str) -> ast.expr:
        """Return code that passes a value on, and lets it be seen."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            with suppress(SyntaxError):
                annotation = ast.parse(annotation.value, mode="eval").body
        # A text is among the arguments of a generic type, as in jaxtyping's.
        texts = (
            one
            for node in ast.walk(annotation)
            if isinstance(node, ast.Subscript)
            for one in getattr(node.slice, "elts", [node.slice])
            if isinstance(one, ast.Constant) and type(one.value) is str
        )
        if next(texts, None) is None:
            return value
        self.n_seen += 1
        return self._pass_on(value, annotation, what)

    def _pass_on(self, value: ast.expr, annotation: ast.expr, what: str) -> ast.expr:
        """Return a call of :func:`see`, which returns the value."""
        nothing = ast.arguments([], [], None, [], [], None, [])
        late, frame = ast.Lambda(nothing, annotation), ast.Name(FRAME, ast.Load())
        given = [value, late, frame, ast.Constant(what), ast.Constant(value.lineno)]
        made = ast.Call(ast.Name(SEE, ast.Load()), given, [])
        return ast.copy_location(made, value)

    def _visit_function(self, node: Any) -> Any:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()
        named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        first: list[ast.stmt] = []
        for one in named:
            if one.annotation is not None:
                value = ast.copy_location(ast.Name(one.arg, ast.Load()), one)
                is_size = ast.unparse(one.annotation) == "int"
                if is_size and node.name == "__init__":
                    seen = self._pass_on(value, one.annotation, one.arg)
                else:
                    seen = self._see(value, one.annotation, f"{one.arg} of {node.name}")
                first.append(ast.copy_location(ast.Expr(seen), node))
        frame = ast.Call(ast.Name("object", ast.Load()), [], [])
        bound = ast.Assign([ast.Name(FRAME, ast.Store())], frame)
        node.body = [ast.copy_location(bound, node), *first, *node.body]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815  ast's

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """See a result."""
        self.generic_visit(node)
        function = self._functions[-1]
        if node.value is not None and function.returns is not None:
            what = f"the result of {function.name}"
            node.value = self._see(node.value, function.returns, what)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """See an annotated variable or attribute."""
        if node.value is not None:
            node.value = self.visit(node.value)
            what = ast.unparse(node.target)
            node.value = self._see(node.value, node.annotation, what)
        return node


def see(
    seen: list[AnnotatedTensor],
    value: Any,
    read: Callable[[], Any],
    frame: object,
    what: str,
    line: int,
    file: str = "",
) -> Any:
    """Keep the tensors of a value that are annotated; return the value."""
    if type(value) is int:  # a size that a constructor is given has its own name
        seen.append(
            AnnotatedTensor(id(frame), line, what, what, (), (value,), "", None)
        )
        FRAMES.append(frame)
    with suppress(Exception):  # an annotation may name what is not there
        for tensor, annotation in match(value, read()):
            dtypes = annotation.dtypes
            seen.append(
                AnnotatedTensor(
                    id(frame),
                    line,
                    what,
                    annotation.dim_str,
                    dtypes if isinstance(dtypes, tuple) else (),
                    tuple(map(int, tensor.shape)),
                    str(tensor.dtype).removeprefix("torch."),
                    find_number(tensor),
                    file,
                )
            )
            FRAMES.append(frame)  # so that no other one has its id
    return value


FRAMES: Final[list[object]] = []


class Watcher:
    """Sees annotated arguments and results of the user's functions, as they are called.

    Those of the block itself are seen by its rewritten code.
    """

    def __init__(self, seen: list[AnnotatedTensor]) -> None:
        self._seen = seen
        self._functions: dict[CodeType, FunctionType | None] = {}
        self._read: set[int] = set()
        self._frames: dict[FrameType, object] = {}

    def __enter__(self) -> None:
        """Begin to watch calls."""
        sys.setprofile(self._watch)

    def __exit__(self, *_: object) -> None:
        """End it."""
        sys.setprofile(None)

    def _watch(self, frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        if event not in {"call", "return"}:
            return
        if code not in self._functions:
            self._find(frame)
        function = self._functions.get(code)
        if function is None:
            return
        if event == "call":
            self._frames[frame] = object()
            for name, annotation in function.__annotations__.items():
                if name in frame.f_locals:
                    what = f"{name} of {function.__qualname__}"
                    at = what, code.co_firstlineno
                    self._see(frame, annotation, frame.f_locals[name], *at)
        elif value is not None and frame in self._frames:
            for name, text, line in list_variables(code):
                if name in frame.f_locals:
                    self._see(frame, text, frame.f_locals[name], name, line)
            result = function.__annotations__.get("return")
            what = f"the result of {function.__qualname__}"
            self._see(frame, result, value, what, code.co_firstlineno)

    def _see(
        self, frame: FrameType, annotation: Any, value: Any, what: str, line: int
    ) -> None:
        """Keep the tensors of a value, whose annotation may be a text."""
        if type(value) is int:
            return

        def read() -> Any:
            is_text = isinstance(annotation, str)
            return eval(annotation, frame.f_globals) if is_text else annotation  # noqa: S307

        at = self._frames[frame], what, line
        see(self._seen, value, read, *at, frame.f_code.co_filename)

    def _find(self, frame: FrameType) -> None:
        """Find the functions of the module of a frame, if that is the user's code."""
        code = frame.f_code
        self._functions[code] = None
        file = code.co_filename
        is_own = is_own_file(file) and not file.startswith(list_installed())
        is_own = is_own and SEE not in code.co_names
        if not is_own or id(frame.f_globals) in self._read:
            return
        self._read.add(id(frame.f_globals))
        for value in [*frame.f_globals.values()]:
            parts = [*vars(value).values()] if isinstance(value, type) else [value]
            for part in parts:
                made = getattr(part, "__func__", getattr(part, "fget", part))
                made = inspect.unwrap(made) if callable(made) else made
                if not isinstance(made, FunctionType):
                    continue
                is_annotated = made.__annotations__ or list_variables(made.__code__)
                if is_annotated and made.__globals__ is frame.f_globals:
                    self._functions[made.__code__] = made


def list_variables(code: CodeType) -> list[tuple[str, str, int]]:
    """Return the annotated local variables of a function that are assigned once.

    Each with its annotation and line: what it is at the end is then what was annotated.
    """
    return read_variables(code.co_filename).get(code.co_firstlineno, [])


@lru_cache(maxsize=64)
def read_variables(file: str) -> dict[int, list[tuple[str, str, int]]]:
    """Return the annotated local variables of each function, by its first line."""
    text = "".join(getlines(file))
    found: dict[int, list[tuple[str, str, int]]] = {}
    for function in ast.walk(ast.parse(text)) if "jaxtyping" in text else ():
        if isinstance(function, ast.FunctionDef):
            first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
            nodes = [*ast.walk(function)]
            names = [node.id for node in nodes if is_assigned(node)]
            found[first] = [
                (node.target.id, ast.unparse(node.annotation), node.lineno)
                for node in nodes
                if isinstance(node, ast.AnnAssign) and is_assigned(node.target)
                if node.value is not None and names.count(node.target.id) == 1
            ]
    return found


def is_assigned(node: ast.AST) -> TypeGuard[ast.Name]:
    """Whether a node is a name that is assigned to."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def match(value: Any, annotation: Any) -> Iterator[tuple[Tensor, Any]]:
    """Yield the tensors of a value with their annotations."""
    if isinstance(value, Tensor) and hasattr(annotation, "dim_str"):
        yield value, annotation
    inner = get_args(annotation)
    if get_origin(annotation) is tuple and isinstance(value, tuple):
        inner = inner[:1] * len(value) if inner[1:] == (...,) else inner
        for one, own in zip(value, inner, strict=False):
            yield from match(one, own)
    elif get_origin(annotation) is list and isinstance(value, list):
        for one in value:
            yield from match(one, inner[0])
    elif isinstance(value, Tensor):  # of a union, the only one that is a shape
        shaped = [own for own in inner if hasattr(own, "dim_str")]
        if len(shaped) == 1:
            yield value, shaped[0]


def find_number(tensor: Tensor) -> int | None:
    """Return the number of a tensor in the recording that is on."""
    for mode in function_mode_stack():
        if isinstance(mode, FunctionMode):
            found = mode.registry.find(tensor)
            return None if found is None else found[0]
    return None


def judge(
    seen: Sequence[AnnotatedTensor], dims: Dims | None
) -> Iterator[tuple[AnnotatedTensor, str]]:
    """Yield each tensor whose annotation is wrong, and what is wrong."""
    bound: dict[tuple[int, str], Bound] = {}
    first: dict[tuple[int, str], int] = {}  # the line at which a name was bound
    passed = set[tuple[int, str]]()
    for one in seen:
        if one.frame == id(None) and (one.line, one.what) in passed:
            # The next turn of a loop of the block: its batch may be smaller.
            for key in [key for key, line in first.items() if line >= one.line]:
                bound.pop(key, None)
        passed.add((one.line, one.what))
        plain = tuple(map(str, one.shape))
        names = plain if dims is None else dims.name(one.number, one.shape)
        shown = f"[{', '.join(names)}]"
        head = f'{one.what} is annotated "{one.dims}" and is '
        if one.dtypes and one.dtype not in one.dtypes:
            yield one, f"{head}{one.dtype}, not {' or '.join(one.dtypes[-2:])}"
        words = one.dims.split()
        pairs = align(words, one.shape, names)
        if pairs is None:
            n = len(words) - words.count("...")
            yield one, f"{head}{shown}: {len(one.shape)} dimensions instead of {n}"
            continue
        known = {*bound}
        reasons = [bind(bound, one.frame, *pair, dims) for pair in pairs]
        first.update(dict.fromkeys(bound.keys() - known, one.line))
        for why in [*filter(None, reasons)][:1]:
            yield one, f"{head}{shown}: {why}"


Bound: TypeAlias = tuple[tuple[int, ...], Sequence[str], bool]
"""The sizes that a name stands for, by number and by name; whether they broadcast."""

Pair: TypeAlias = tuple[str, tuple[int, ...], tuple[str, ...]]


def align(
    words: Sequence[str], shape: Sequence[int], names: Sequence[str]
) -> list[Pair] | None:
    """Return each annotated dimension with the sizes that it stands for.

    None if there are too many or too few.
    """
    many = [at for at, word in enumerate(words) if word.startswith(("*", "..."))]
    n_extra = len(shape) - len(words)
    if n_extra < -len(many) or (n_extra and not many):
        return None
    pairs, at = [], 0
    for number, word in enumerate(words):
        n = 1 + n_extra if number in many[:1] else 1
        pairs.append((word, tuple(shape[at : at + n]), tuple(names[at : at + n])))
        at += n
    return pairs


def bind(
    bound: dict[tuple[int, str], Bound],
    frame: int,
    word: str,
    sizes: tuple[int, ...],
    names: tuple[str, ...],
    dims: Dims | None,
) -> str:
    """Return why a dimension is not the annotated one; "" if it may be."""
    name = word.lstrip("*?#").rpartition("=")[2]
    if name in {"...", ""} or name[0] == "_":
        return ""
    if not name.isidentifier():
        known = {n: s[0] for (own, n), (s, *_) in bound.items() if own == frame and s}
        wanted = evaluate(name, known)
        is_right = wanted is None or sizes == (wanted,)
        head = "" if name.isdecimal() else f"{name} is "
        return "" if is_right else f"{head}{wanted}, and this is {names[0]}"
    is_open = "#" in word
    before, texts, was_open = bound.setdefault((frame, name), (sizes, names, is_open))
    joint = before if before == sizes else None
    if is_open or was_open:
        with suppress(RuntimeError):  # they do not broadcast
            joint = tuple(broadcast_shapes(before, sizes))
    is_right = (is_open or joint == sizes) and (was_open or joint == before)
    if joint is None or not is_right:
        listed, own = (", ".join(part) for part in (texts, names))
        return f"{name} is {listed}, and this is {own}"
    if joint != before:
        bound[frame, name] = (
            joint,
            (names if joint == sizes else [*map(str, joint)]),
            is_open,
        )
    for size, one, other in zip(sizes, texts, names, strict=False):
        if before == sizes and dims is not None and differ(one, other, dims.values):
            return f"{name} is {one}, and this is {other}, which is {size} as well"
    return ""


def differ(one: str, other: str, values: Mapping[str, int]) -> bool:
    """Whether two formulas have different values where a name is twice as large."""
    moved = [{**values, name: 2 * n} for name, n in values.items()]
    return any(evaluate(one, sizes) != evaluate(other, sizes) for sizes in moved)
