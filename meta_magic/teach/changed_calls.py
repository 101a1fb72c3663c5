"""Changes of one call of torch, each a mistake that learners make.

A code runs again with one call changed: ``mean`` for ``sum``, another ``dim``, an
operand that is transposed, a mask inverted, a step left out. Read ``CHANGES`` first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MOST_ELEMENTS: Final = 10_000
"""Elements of a tensor that is changed, compared, or of which reads are found."""


class TorchCall(NamedTuple):
    """A call of a function of torch.

    Attributes:
        following: The next call, if its first operand is the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    following: "TorchCall | None" = None

    @property
    def name(self) -> str:
        """The function's name, or that of an attribute, as ``T``."""
        name = self.function.__name__
        if name == "__get__":
            name = self.function.__self__.__name__  # type: ignore[attr-defined]
        return {"__getitem__": "indexing"}.get(name, name.strip("_"))

    @property
    def is_fragile(self) -> bool:
        """Whether it takes a list of parameters, as the kernel of an LSTM.

        With other arguments that kernel may read outside of their memory.
        """
        lists = [one for one in self.args if isinstance(one, list | tuple)]
        return any(isinstance(part, nn.Parameter) for one in lists for part in one)

    @property
    def tensors(self) -> Sequence[int]:
        """Which arguments are tensors of a size that is looked at."""
        numbered = [(n, a) for n, a in enumerate(self.args) if isinstance(a, Tensor)]
        return [n for n, a in numbered if a.numel() <= MOST_ELEMENTS]

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result with other arguments."""
        function = torch.reshape if self.name == "view" else self.function
        return function(*args, **self.kwargs | kwargs)


Run: TypeAlias = Callable[[TorchCall], Any]
"""Returns the result of a changed call, from the call as it is made."""


class Changed(NamedTuple):
    """A call that is changed.

    Attributes:
        extra: What is wrong with an answer that makes the call as it was.
        missing: What is wrong with an answer that makes the changed call, where the
            solution makes this one; "" if ``extra`` says it.
        run_next: As ``run``, of the call after it; None to leave that as it is.
    """

    run: Run
    extra: str
    missing: str = ""
    run_next: Run | None = None


class Changes(TorchFunctionMode):
    """Records the calls of functions of torch, and changes some of them.

    Args:
        by_index: By the number of a call, a function that returns its result instead.
    """

    def __init__(self, by_index: Mapping[int, Run | None] | None = None) -> None:
        super().__init__()
        self.by_index = by_index or {}
        self.calls: list[TorchCall] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or what it is changed to."""
        call = TorchCall(func, args, kwargs or {})
        run = self.by_index.get(len(self.calls))
        result = run(call) if run else func(*args, **call.kwargs)
        if args and self.calls and args[0] is self.calls[-1].result:
            self.calls[-1] = self.calls[-1]._replace(following=call)
        self.calls.append(call._replace(result=result))
        return result


def replace_argument(at: int | str, function: Callable[[Any], Any]) -> Run:
    """Return what makes a call again with one argument changed."""

    def run(call: TorchCall) -> Any:
        if isinstance(at, str):
            return call.again(*call.args, **{at: function(call.kwargs[at])})
        args = [function(a) if n == at else a for n, a in enumerate(call.args)]
        return call.again(*args)

    return run


def say_both(text: str, was: object, now: object) -> tuple[str, str]:
    """Return a text about a call as it was, and about one as it is changed."""
    return text.format(was, now), text.format(now, was)


KINDRED: Final = (
    ("sum", "mean", "prod", "amax", "amin"),
    ("add", "mul", "sub", "div"),
    ("cat", "stack"),
    ("tril", "triu"),
    ("softmax", "log_softmax", "sigmoid"),
    ("mse_loss", "l1_loss", "smooth_l1_loss"),
    ("log", "exp", "sqrt", "square", "abs", "neg"),
    ("gt", "ge", "lt", "le", "eq", "ne"),
    ("repeat", "repeat_interleave"),
    ("std", "var"),
    ("argmax", "argmin"),
    ("zeros", "ones"),
    ("max_pool2d", "avg_pool2d"),
)
"""Functions that are taken for one another."""

REDUCTIONS: Final = frozenset(
    {"sum", "mean", "prod", "amax", "amin", "max", "std", "var", "argmax", "logsumexp"}
)
TURNS: Final = frozenset(
    {"transpose", "permute", "T", "mT", "t", "swapaxes", "movedim"}
)
DIMENSIONS: Final = (
    REDUCTIONS
    | TURNS
    | {
        *("softmax", "log_softmax", "cat", "stack", "unsqueeze", "squeeze", "gather"),
        *("cumsum", "flatten", "unfold", "index_select", "select"),
    }
)
"""Functions whose whole numbers are dimensions."""

VIEWS: Final = frozenset({"view", "reshape", "flatten", "unflatten"})
OTHERS: Final = (0, 1, 0.0, -torch.inf, torch.inf)
"""Numbers that are tried for any other one."""


def change_function(call: TorchCall) -> Iterator[Changed]:
    """Call another function with the same arguments."""
    for other in (o for names in KINDRED if call.name in names for o in names):
        for owner in (Tensor, torch, functional):
            function = getattr(owner, other, None)
            if function and other != call.name:
                texts = say_both("{} is called, and {} is wanted", call.name, other)
                run: Run = lambda c, f=function: f(*c.args, **c.kwargs)  # type: ignore[misc]  # noqa: E731
                yield Changed(run, *texts)
                break


def change_number(call: TorchCall) -> Iterator[Changed]:
    """Give another number, such as a dimension, a diagonal or what a mask writes."""
    rank = max((v.ndim for v in call.args if isinstance(v, Tensor)), default=2)
    is_dim = call.name in DIMENSIONS
    turned = [a % rank for a in call.args if type(a) is int and call.name in TURNS]
    text = "{} is called with {{}}, and another number is wanted"
    if is_dim:
        text = "{} is along dimension {{}}, and another is wanted"
    named: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    for key, value in named:
        if type(value) not in {int, float} or call.name in VIEWS:
            continue
        for other in range(rank + 1) if is_dim else (value - 1, value + 1, *OTHERS):
            if value not in {other, other - rank * is_dim} and other not in turned:
                texts = say_both(text.format(call.name), value, other)
                yield Changed(replace_argument(key, lambda _, n=other: n), *texts)  # type: ignore[misc]


def change_keepdim(call: TorchCall) -> Iterator[Changed]:
    """Keep a reduced dimension, or not."""
    if call.name in REDUCTIONS:
        keeps = bool(call.kwargs.get("keepdim"))
        hows = ("keeps its", "drops its") if keeps else ("drops its", "keeps its")
        texts = say_both(f"{call.name} {{}} dimension, and {{}} is wanted", *hows)
        yield Changed(lambda c: c.again(*c.args, keepdim=not keeps), *texts)


def invert_mask(call: TorchCall) -> Iterator[Changed]:
    """Invert a mask."""
    for at in call.tensors:
        if call.args[at].dtype == torch.bool and call.name != "invert":
            run = replace_argument(at, torch.logical_not)
            yield Changed(run, f"the mask of {call.name} is inverted")


def change_index(call: TorchCall) -> Iterator[Changed]:
    """Take another index or slice, or the mean along it."""
    if call.name != "indexing":
        return
    index = as_tuple(call.args[1])
    for at, value in enumerate(index):
        for other, text in change_one_index(value):
            yield Changed(replace_argument(1, partial(replace_at, at, other)), text)
        if type(value) is int and isinstance(call.args[0], Tensor):
            dim = at - sum(type(i) is int for i in index[:at])
            whole = replace_argument(1, partial(replace_at, at, slice(None)))
            text = f"{{}} of dimension {dim} is taken, and {{}} of it is wanted"
            run: Run = lambda c, w=whole, d=dim: w(c).mean(d)  # type: ignore[misc]  # noqa: E731
            yield Changed(run, *say_both(text, "one index", "the mean"))


def as_tuple(index: Any) -> tuple[Any, ...]:
    """Return an index as a tuple, which it is with several dimensions."""
    return index if isinstance(index, tuple) else (index,)


def replace_at(at: int, value: Any, index: Any) -> tuple[Any, ...]:
    """Return an index with one part replaced."""
    return tuple(value if n == at else old for n, old in enumerate(as_tuple(index)))


def change_one_index(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield other indices, each with what is wrong."""
    if type(value) is int:
        for other in {value - 1, value + 1, 0, 1, -1} - {value}:
            yield other, "another position is wanted; counting starts at 0"
    elif isinstance(value, slice):
        begin, end, step = value.start or 0, value.stop, value.step or 1
        for other in (begin + 1, begin - 1):
            yield slice(other, end, value.step), "a slice begins off by one"
        for other in () if end is None else (end + 1, end - 1):
            yield slice(value.start, other, value.step), "a slice ends off by one"
        for other in (step + 1, max(1, step - 1)):
            yield slice(value.start, end, other), "a slice has another step"


def exchange_results(call: TorchCall) -> Iterator[Changed]:
    """Exchange two of the results of a call."""
    n = len(call.result) if isinstance(call.result, tuple | list) else 0
    for one, other in combinations(range(n), 2):

        def run(c: TorchCall, one: int = one, other: int = other) -> Any:
            made = [*c.again(*c.args)]
            made[one], made[other] = made[other], made[one]
            return tuple(made)

        yield Changed(run, f"another one of the results of {call.name} is wanted")


def leave_out(call: TorchCall) -> Iterator[Changed]:
    """Leave out a call: its operand is its result."""
    if call.tensors[:1] == [0] and isinstance(call.result, Tensor):
        texts = f"{call.name} is one step too much", f"{call.name} is missing"
        yield Changed(lambda c: c.args[0], *texts)


def exchange_operands(call: TorchCall) -> Iterator[Changed]:
    """Exchange the first two operands."""
    if call.tensors[:2] == [0, 1]:
        run: Run = lambda c: c.again(c.args[1], c.args[0], *c.args[2:])  # noqa: E731
        yield Changed(run, f"the operands of {call.name} are exchanged")


def exchange_steps(call: TorchCall) -> Iterator[Changed]:
    """Exchange a call and the one that takes its result."""
    then = call.following
    if then is None or any(isinstance(a, Tensor) for a in then.args[1:]):
        return
    texts = say_both("{} is before {}, and is wanted after it", call.name, then.name)
    runs: list[Run] = [
        lambda c, f=one: f.function(c.args[0], *f.args[1:], **f.kwargs)  # type: ignore[misc]
        for one in (then, call)
    ]
    yield Changed(runs[0], *texts, run_next=runs[1])


def take_view(call: TorchCall) -> Iterator[Changed]:
    """Make the shape of a transpose by a view."""
    if call.name in TURNS and isinstance(call.result, Tensor):
        yield Changed(
            lambda c: c.args[0].reshape(c.again(*c.args).shape),
            f"{call.name} exchanges dimensions, and a view is wanted",
            "a view keeps the order of elements, and a transpose is wanted",
        )


def turn_operand(call: TorchCall) -> Iterator[Changed]:
    """Exchange two dimensions of an operand."""
    for at in call.tensors:
        for one, other in combinations(range(call.args[at].ndim), 2):
            text = (
                f"the input of {call.name} has dimensions {one} and {other} exchanged"
            )
            if call.name in VIEWS:
                text = f"dimensions have to be exchanged before {call.name}"
            elif call.name == "indexing":
                text = f"dimensions {one} and {other} of an index are exchanged"
            turn = partial(torch.transpose, dim0=one, dim1=other)
            yield Changed(replace_argument(at, turn), text)


def turn_result(call: TorchCall) -> Iterator[Changed]:
    """Exchange two dimensions of a result."""
    n = call.result.ndim if isinstance(call.result, Tensor) else 0
    for pair in combinations(range(n), 2):
        text = "the result of {} has dimensions {} and {} exchanged"
        run: Run = lambda c, pair=pair: c.again(*c.args).transpose(*pair)  # type: ignore[misc]  # noqa: E731
        yield Changed(run, text.format(call.name, *pair))


CHANGES: Final[Sequence[Callable[[TorchCall], Iterator[Changed]]]] = (
    change_function,
    change_number,
    change_keepdim,
    invert_mask,
    change_index,
    exchange_results,
    leave_out,
    exchange_operands,
    exchange_steps,
    take_view,
    turn_operand,
    turn_result,
)
"""Each yields changes of one call, with what is wrong if a change makes it right."""
