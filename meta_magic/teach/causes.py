"""Why an answer is wrong: the rule that a call broke, or the step that is not as wanted.

A wrong answer runs again with one call of torch changed, and so does the solution: if
``x - x.mean(0)`` becomes right with another dimension of ``mean``, that is the cause, and
if the solution with ``stack`` along another dimension gives the learner's numbers, too.
Else the cause is what an element is computed from: ``c[0, 0] is computed from x[:, 0],
and x[0, :] is wanted``. All this runs in a child. Read :func:`find_cause` first, and
``CHANGES``.
"""

import linecache
import re
from ast import parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import combinations
from time import process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from meta_magic.session.record import record
from meta_magic.teach.answers import FILE, Sizes, start
from meta_magic.teach.differences import is_near
from meta_magic.trials.blocks import set_sizes
from meta_magic.trials.sandbox import enter_sandbox

if TYPE_CHECKING:
    from meta_magic.teach.exercises import Exercise
    from meta_magic.trace.notes import Note

SECONDS: Final = 1.5
"""How much processor time the search for a changed call takes."""

MOST_ELEMENTS: Final = 10_000
"""Elements of a tensor that is changed, or of which reads are found."""


def explain_error(made: "Exercise", answer: str, sizes: Sizes, error: str) -> str:
    """Return why an answer fails: the rule that a call broke, without its repairs."""
    enter_sandbox()
    found = None
    with suppress(Exception):  # the error itself is enough
        found = record_answer(made, answer, sizes).explanation
    if found is None or not found.is_of_torch:
        return error
    return " ".join([f"{found.expression}: {error}.", *found.rules[:2]])


def find_cause(made: "Exercise", answer: str, sizes: Sizes, name: str) -> str:
    """Return a sentence with the cause of a wrong result; "" if none is found.

    Args:
        name: Of the result.
    """
    enter_sandbox()
    for search in (find_note, find_change, find_reads, find_growth):
        with suppress(Exception):  # a cause is an extra
            text = search(made, answer, sizes, name)
            if text:
                return f"{text[:1].upper()}{text[1:]}."
    return ""


def record_answer(made: "Exercise", answer: str, sizes: Sizes) -> Any:
    """Return the trace of an answer, on meta."""
    text = f"{answer}\n"
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional}
    given = compile(set_sizes(parse(made.given), sizes), "<given>", "exec")
    code = compile(text, FILE, "exec")
    with suppress(Exception), record(as_device="cpu", check=True) as trace:
        exec(given, names)  # noqa: S102  the exercise
        exec(code, names)  # noqa: S102  the answer
    return trace


def find_note(made: "Exercise", answer: str, sizes: Sizes, _: str) -> str:
    """Return what ``--check`` notes of an answer that runs and is wrong."""
    notes: Sequence[Note] = record_answer(made, answer, sizes).wrong
    # Lines of such a note are those of this file, which runs the answer.
    return re.sub(r" \(line \d+\)", "", notes[0].text) if notes else ""


class Call(NamedTuple):
    """A call of a function of torch, as an answer makes it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """The function's name, or that of an attribute, as ``T``."""
        own = self.function.__name__
        name = self.function.__self__.__name__ if own == "__get__" else own  # type: ignore[attr-defined]
        return name.strip("_").removesuffix("item").removesuffix("get") or "[...]"

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result with other arguments."""
        return self.function(*args, **self.kwargs | kwargs)


class Changed(NamedTuple):
    """A call that is changed.

    Attributes:
        run: Returns the result of the changed call, from the call as it runs then.
        extra: What is wrong with an answer that has this call as it was.
        missing: What is wrong with one that has it as it is changed.
    """

    run: Callable[[Call], Any]
    extra: str
    missing: str = ""


class Changes(TorchFunctionMode):
    """Lists the calls of functions of torch, and changes one of them.

    Args:
        at: Which; -1 for none.
        run: Returns its result.
    """

    def __init__(self, at: int = -1, run: Callable[[Call], Any] | None = None) -> None:
        super().__init__()
        self.at, self.run = at, run
        self.calls: list[Call] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,  # noqa: ARG002  torch passes it
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Call a function of torch, or what it is changed to."""
        call = Call(func, args, kwargs or {}, None)
        if self.run is not None and len(self.calls) == self.at:
            self.calls.append(call)
            return self.run(call)
        result = func(*args, **call.kwargs)
        self.calls.append(call._replace(result=result))
        return result


class Runner:
    """Runs codes with the same given tensors again and again."""

    def __init__(self, given: str, sizes: Sizes) -> None:
        self.given = start(given, sizes)
        self.state = torch.get_rng_state()

    def run(
        self, code: Any, mode: Any = None, make: Any = Tensor.clone
    ) -> dict[str, Any]:
        """Return the names that a code leaves.

        Args:
            mode: A mode of torch in which it runs.
            make: Copies a given tensor.
        """

        def copy(value: Any) -> Any:
            if type(value) is list:
                return [*map(copy, value)]
            return make(value) if isinstance(value, Tensor) else value

        torch.set_rng_state(self.state)
        names = {name: copy(value) for name, value in self.given.items()}
        with mode or nullcontext():
            exec(code, names)  # noqa: S102  the answer or the solution
        return names


def find_change(made: "Exercise", answer: str, sizes: Sizes, name: str) -> str:
    """Return which call is another one than is wanted."""
    runner, end = Runner(made.given, sizes), process_time() + SECONDS
    codes = [compile(code, FILE, "exec") for code in (answer, made.solution)]
    results = [runner.run(code).get(name) for code in codes]
    if not all(isinstance(r, Tensor) and r.numel() <= MOST_ELEMENTS for r in results):
        return ""
    for code, target in zip(codes, reversed(results), strict=True):
        mode = Changes()
        runner.run(code, mode)
        for change in CHANGES:
            for at, call in enumerate(mode.calls):
                for made_so in change(call):
                    if process_time() > end:
                        return ""
                    with suppress(Exception):  # it does not fit
                        names = runner.run(code, Changes(at, made_so.run))
                        if is_same(names.get(name), target):
                            is_mine = code is codes[0]
                            both = made_so.extra if is_mine else made_so.missing
                            return both or made_so.extra
    return ""


def is_same(one: Any, other: Tensor) -> bool:
    """Whether a result has the shape and the numbers of another one."""
    return (
        isinstance(one, Tensor)
        and one.shape == other.shape
        and is_near(*(x.detach().to(torch.complex128) for x in (one, other)))
    )


KINDRED: Final = tuple(
    tuple(names.split())
    for names in (
        "sum mean prod amax",
        "mean amin std median",
        "add mul sub div",
        "cat stack",
        "hstack vstack",
        "tril triu",
        "softmax log_softmax sigmoid",
        "mse_loss l1_loss smooth_l1_loss",
        "repeat repeat_interleave",
        "log exp sqrt square abs neg",
        "gt ge lt le eq ne",
        "logical_and logical_or",
        "argmax argmin",
        "zeros ones",
        "max_pool2d avg_pool2d",
    )
)
"""Functions that are taken for one another."""


def change_function(call: Call) -> Iterator[Changed]:
    """Call another function with the same arguments."""
    for names in KINDRED:
        for other in names if call.name in names else ():
            places = (Tensor, torch, functional)
            found = [getattr(place, other) for place in places if hasattr(place, other)]
            if other == call.name or not found:
                continue

            def run(c: Call, found: Any = found) -> Any:
                return found[0](*c.args, **c.kwargs)

            yield Changed(
                run,
                f"{call.name} is called, and {other} is wanted",
                f"{other} is called, and {call.name} is wanted",
            )


def list_tensors(call: Call) -> list[int]:
    """Return which arguments of a call are tensors of a size that is looked at."""
    return [
        at
        for at, value in enumerate(call.args)
        if isinstance(value, Tensor) and value.numel() <= MOST_ELEMENTS
    ]


DIMENSIONS: Final = frozenset(
    "sum mean prod amax amin softmax log_softmax cat stack unsqueeze squeeze gather max "
    "argmax cumsum std var transpose permute select flatten unfold".split()
)
"""Functions whose whole numbers are dimensions."""


def change_number(call: Call) -> Iterator[Changed]:
    """Give another whole number, such as a dimension."""
    rank = max((v.ndim for v in call.args if isinstance(v, Tensor)), default=2)
    is_dim = call.name in DIMENSIONS
    for key, value in (*enumerate(call.args), *call.kwargs.items()):
        if type(value) is not int:
            continue
        others = [*range(rank + 1)] if is_dim else [value - 1, value + 1, 1, 0]
        for other in others:
            if other == value or (is_dim and other == value % max(1, rank)):
                continue

            def run(c: Call, key: Any = key, other: int = other) -> Any:
                return c.again(
                    *replace_at(c.args, key, other),
                    **{key: other} if isinstance(key, str) else {},
                )

            if is_dim:
                yield Changed(
                    run,
                    f"{call.name} is along dimension {value}, and another is wanted",
                    f"{call.name} is along dimension {other}, and another is wanted",
                )
            else:
                yield Changed(
                    run,
                    f"{call.name} is called with {value}, and another number is wanted",
                    f"{call.name} is called as with {other}, and another number is wanted",
                )


def replace_at(args: tuple[Any, ...], at: Any, value: Any) -> list[Any]:
    """Return arguments with another one at a place."""
    return [value if n == at else old for n, old in enumerate(args)]


def change_value(call: Call) -> Iterator[Changed]:
    """Write another value where a mask is."""
    for at, value in enumerate(call.args):
        if call.name not in {"masked_fill", "where", "full", "fill"} or type(
            value
        ) not in {int, float}:
            continue
        for other in (0.0, -torch.inf, torch.inf, 1.0):
            if other != value:

                def run(c: Call, at: int = at, other: float = other) -> Any:
                    return c.again(*replace_at(c.args, at, other))

                text = "{} writes {:g}, and another value is wanted"
                yield Changed(
                    run, text.format(call.name, value), text.format(call.name, other)
                )


def leave_out(call: Call) -> Iterator[Changed]:
    """Leave out a call: its first operand is its result."""
    if list_tensors(call)[:1] == [0] and isinstance(call.result, Tensor):
        yield Changed(
            lambda c: c.args[0],
            f"{call.name} is one step too much",
            f"{call.name} is missing",
        )


def change_keepdim(call: Call) -> Iterator[Changed]:
    """Keep a reduced dimension, or not."""
    if call.name in DIMENSIONS:
        keeps = bool(call.kwargs.get("keepdim"))
        texts = [
            f"{call.name} lacks keepdim=True",
            f"keepdim of {call.name} is too much",
        ]
        yield Changed(
            lambda c: c.again(*c.args, keepdim=not keeps),
            texts[keeps],
            texts[not keeps],
        )


def exchange_operands(call: Call) -> Iterator[Changed]:
    """Exchange the first two operands."""
    if list_tensors(call)[:2] == [0, 1]:
        yield Changed(
            lambda c: c.again(c.args[1], c.args[0], *c.args[2:]),
            f"the operands of {call.name} are exchanged",
        )


def invert_mask(call: Call) -> Iterator[Changed]:
    """Invert a mask."""
    for at in list_tensors(call):
        if call.args[at].dtype == torch.bool:
            yield Changed(
                lambda c, at=at: c.again(*replace_at(c.args, at, ~c.args[at])),  # type: ignore[misc]
                f"the mask of {call.name} is inverted",
            )


def turn_operand(call: Call) -> Iterator[Changed]:
    """Exchange two dimensions of an operand."""
    for at in list_tensors(call):
        for one, other in combinations(range(call.args[at].ndim), 2):

            def run(c: Call, at: int = at, pair: tuple[int, int] = (one, other)) -> Any:
                function = torch.reshape if c.name == "view" else c.function
                turned = c.args[at].transpose(*pair)
                return function(*replace_at(c.args, at, turned), **c.kwargs)

            yield Changed(
                run,
                f"the input of {call.name} has dimensions {one} and {other} exchanged"
                if call.name not in VIEWS
                else f"{call.name} keeps the order of elements, and dimensions have to be exchanged before it",
            )


VIEWS: Final = frozenset({"view", "reshape", "flatten", "unflatten"})
TURNS: Final = frozenset(
    {"transpose", "permute", "T", "mT", "t", "swapaxes", "movedim"}
)


def change_order(call: Call) -> Iterator[Changed]:
    """Make the shape of a transpose by a view, or of a view by a transpose."""
    if call.name in TURNS and isinstance(call.result, Tensor):
        yield Changed(
            lambda c: c.args[0].reshape(c.again(*c.args).shape),
            f"{call.name} exchanges dimensions, and a view is wanted",
            "a view keeps the order of elements, and dimensions have to be exchanged",
        )


def turn_result(call: Call) -> Iterator[Changed]:
    """Exchange two dimensions of a result."""
    if isinstance(call.result, Tensor) and call.name not in TURNS:
        for one, other in combinations(range(call.result.ndim), 2):
            yield Changed(
                lambda c, pair=(one, other): c.again(*c.args).transpose(*pair),  # type: ignore[misc]
                f"the result of {call.name} has dimensions {one} and {other} exchanged",
            )


def change_index(call: Call) -> Iterator[Changed]:
    """Take another index or slice, or the mean along it."""
    if call.name != "[...]":
        return
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    for at, value in enumerate(index):
        for other, text in change_one_index(value):

            def run(c: Call, at: int = at, other: Any = other) -> Any:
                old = c.args[1] if isinstance(c.args[1], tuple) else (c.args[1],)
                return c.args[0][tuple(replace_at(old, at, other))]

            yield Changed(run, text, text)
        if type(value) is int and Ellipsis not in index:
            dim = at - sum(type(i) is int for i in index[:at])

            def reduce(c: Call, at: int = at, dim: int = dim) -> Any:
                old = c.args[1] if isinstance(c.args[1], tuple) else (c.args[1],)
                return c.args[0][tuple(replace_at(old, at, slice(None)))].mean(dim)

            yield Changed(
                reduce,
                f"one index of dimension {dim} is taken, and a mean is wanted",
                f"a mean along dimension {dim} is taken, and one index of it is wanted",
            )


def change_one_index(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield other indices, each with what is wrong."""
    if type(value) is int:
        for other in (value - 1, value + 1, 0, 1, -1):
            if other != value:
                yield other, "another index is wanted"
    elif isinstance(value, slice):
        begin, step = value.start or 0, value.step or 1
        for other in (begin + 1, begin - 1):
            yield slice(other, value.stop, value.step), "a slice begins off by one"
        if value.stop is not None:
            for other in (value.stop + 1, value.stop - 1):
                yield slice(value.start, other, value.step), "a slice ends off by one"
        for other in (step + 1, max(1, step - 1)):
            yield slice(value.start, value.stop, other), "a slice has another step"


Change: TypeAlias = Callable[[Call], Iterator[Changed]]
CHANGES: Final[Sequence[Change]] = (
    change_function,
    change_number,
    change_keepdim,
    change_value,
    invert_mask,
    change_index,
    leave_out,
    exchange_operands,
    change_order,
    turn_operand,
    turn_result,
)
"""Each yields changes of one call of torch: what learners confuse."""


def find_reads(made: "Exercise", answer: str, sizes: Sizes, name: str) -> str:
    """Return what a wrong element is computed from, and what is wanted."""
    runner = Runner(made.given, sizes)
    codes = [compile(code, FILE, "exec") for code in (answer, made.solution)]
    plain = [runner.run(code)[name] for code in codes]
    if plain[0].shape != plain[1].shape:
        return ""
    wide = [x.detach().to(torch.complex128) for x in plain]
    wrong = (~torch.isclose(*wide, 1e-4, 1e-5, equal_nan=True)).nonzero()
    index = tuple(wrong[-1].tolist())  # the first is often in a corner, as [0, 0]
    mine, right = (read_element(runner, code, name, index) for code in codes)
    differ = [key for key in mine | right if mine.get(key) != right.get(key)]
    if not differ:
        return ""
    target = f"{name}[{', '.join(map(str, index))}]" if index else name
    read, wanted = (
        " and ".join(reads[key] for key in differ if key in reads) or "nothing else"
        for reads in (mine, right)
    )
    return f"{target} is computed from {read}, and {wanted} is wanted"


def read_element(
    runner: Runner, code: Any, name: str, index: tuple[int, ...]
) -> dict[str, str]:
    """Return which elements of each given tensor an element is computed from.

    By its gradient; that of numbers without one, by the place where its value stands.
    """
    leaves: list[Tensor] = []

    def make(tensor: Tensor) -> Tensor:
        is_float = tensor.is_floating_point() and tensor.numel() <= MOST_ELEMENTS
        leaves.append(tensor.detach().clone().requires_grad_(is_float))
        return leaves[-1].clone()

    titles = [
        title
        for key, value in runner.given.items()
        for title, tensor in list_given(key, value)
    ]
    element = runner.run(code, make=make)[name][index]
    if element.requires_grad:
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(element, asked, allow_unused=True))
        grads = [next(found) if leaf.requires_grad else None for leaf in leaves]
        masks = [None if grad is None else grad != 0 for grad in grads]
    else:
        masks = [leaf == element for leaf in leaves]
        if sum(int(mask.sum()) for mask in masks) != 1:
            return {}
    pairs = zip(titles, masks, strict=True)
    return {t: format_elements(t, m) for t, m in pairs if m is not None and m.any()}


def list_given(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a name holds, with what each is called."""
    if isinstance(value, Tensor):
        yield name, value
    elif type(value) is list:
        for at, part in enumerate(value):
            yield from list_given(f"{name}[{at}]", part)


def format_elements(name: str, mask: Tensor) -> str:
    """Return elements of a tensor as an index, or their number."""
    found = [sorted({*column.tolist()}) for column in mask.nonzero().T]
    texts = []
    n_inside = 1
    for some, size in zip(found, mask.shape, strict=True):
        n_inside *= len(some)
        is_run = some == [*range(some[0], some[-1] + 1)]
        text = f"{some[0]}:{some[-1] + 1}" if is_run else str(some)
        texts.append(
            ":" if len(some) == size > 1 else str(some[0]) if len(some) == 1 else text
        )
    n = int(mask.sum())
    if n != n_inside:
        return f"{n} elements of {name}"
    return f"{name}[{', '.join(texts)}]" if texts else name


def find_growth(made: "Exercise", answer: str, sizes: Sizes, name: str) -> str:
    """Return how a wrong number depends on the given ones."""
    codes = (answer, made.solution)
    given = start(made.given, sizes)
    known = {key: value for key, value in given.items() if type(value) is int}
    runs: list[tuple[str, Any, Any]] = []
    for key in ("", *known):
        other = dict(sizes) | ({key: known[key] + 4} if key else {})
        with suppress(Exception):  # a size that does not fit
            runs.append(
                (key, *(run_number(made.given, code, other, name) for code in codes))
            )
    (_, mine, right), *others = runs
    shares = {round(a / b, 6) for _, a, b in runs}
    steps = {a - b for _, a, b in runs}
    if len(shares) == 1:
        return f"it is always {shares.pop():g} times what is wanted"
    if len(steps) == 1:
        return f"it is always {steps.pop():+g} off"
    unread = [key for key, a, b in others if a == mine and b != right]
    if unread:
        return f"it does not change with {' and '.join(unread)}"
    wrong = [(key, a, b) for key, a, b in others if a - mine != b - right]
    if len(wrong) == len(others) > 1:
        return ""
    return "; ".join(
        f"it grows by {a - mine} with 4 more for {key}, and by {b - right} is wanted"
        for key, a, b in wrong
    )


def run_number(given: str, code: str, sizes: Sizes, name: str) -> Any:
    """Return a number that a code computes."""
    names = start(given, sizes)
    exec(compile(code, FILE, "exec"), names)  # noqa: S102  the answer or the solution
    number: Mapping[str, Any] | Any = names[name]
    return number if type(number) in {int, float} else None
