"""Why an answer is wrong: the rule that a call broke, or the call that is another one.

A wrong answer runs again with one call of torch changed, and so does the solution: if
``x - x.mean(0)`` becomes right with another dimension of ``mean``, that is the cause;
and if the solution with another ``dim`` of ``stack`` gives the learner's numbers, too.
Else the cause is what an element is computed from: ``c[0, 0] is computed from x[:, 0],
and x[0, :] is wanted``. All this runs in children. Read :func:`find_cause` first, and
``CHANGES``.
"""

import linecache
import re
from ast import parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import combinations, product
from time import process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from meta_magic.session.record import record
from meta_magic.teach.answers import FILE, Sizes, ask, start
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
    """Return the cause of a wrong result as a text; "" if none is found.

    Each search is in a child of its own: a changed call may crash.

    Args:
        name: Of the result.
    """
    asked = (partial(search_in_child, s, made, answer, sizes, name) for s in SEARCHES)
    return next((text for text in ask(asked) if isinstance(text, str) and text), "")


def search_in_child(search: "Search", *question: Any) -> str:
    """Return what a search finds."""
    enter_sandbox()
    text = ""
    with suppress(Exception):  # a cause is an extra
        text = search(*question)
    return text


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
    """A call of a function of torch, as an answer makes it.

    Attributes:
        following: The next call, if that takes the result; no attribute of a tensor.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    following: "Call | None" = None

    @property
    def name(self) -> str:
        """The function's name, or that of an attribute, as ``T``."""
        own = self.function.__name__
        name = self.function.__self__.__name__ if own == "__get__" else own  # type: ignore[attr-defined]
        return name.strip("_").removesuffix("item").removesuffix("get") or "[...]"

    @property
    def is_fragile(self) -> bool:
        """Whether it takes a list of parameters, as the kernel of an LSTM.

        With other arguments that kernel may read outside of their memory.
        """
        lists = [one for one in self.args if isinstance(one, list | tuple)]
        return any(isinstance(part, nn.Parameter) for one in lists for part in one)

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result with other arguments."""
        return self.function(*args, **self.kwargs | kwargs)


class Changed(NamedTuple):
    """A call that is changed.

    Attributes:
        run: Returns the result of the changed call, from the call as it runs then.
        extra: What is wrong with an answer that has this call as it was.
        missing: What is wrong with one that has it as it is changed.
        run_next: As ``run``, of the call after it; None to leave that as it is.
    """

    run: Callable[[Call], Any]
    extra: str
    missing: str
    run_next: Callable[[Call], Any] | None = None


class Changes(TorchFunctionMode):
    """Lists the calls of functions of torch, and changes some of them.

    Args:
        by_place: What returns the result of a call instead, by the call's place.
    """

    def __init__(self, by_place: Mapping[int, Any] | None = None) -> None:
        super().__init__()
        self.by_place = by_place or {}
        self.calls: list[Call] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Call a function of torch, or what it is changed to."""
        call = Call(func, args, kwargs or {})
        run = self.by_place.get(len(self.calls))
        result = run(call) if run else func(*args, **call.kwargs)
        before = self.calls[-1:]
        if args and before and args[0] is before[0].result:
            self.calls[-1] = before[0]._replace(following=call)
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


def find_change(made: "Exercise", answer: str, _: Sizes, name: str) -> str:
    """Return which call is another one than is wanted."""
    codes = [compile(code, FILE, "exec") for code in (answer, made.solution)]
    runners = [Runner(made.given, sizes) for sizes in ({}, *made.sizes)]
    end = process_time() + SECONDS
    for code, other in (codes, reversed(codes)):
        targets = [runner.run(other).get(name) for runner in runners]
        mode = Changes()
        runners[0].run(code, mode)
        for change, (at, call) in product(CHANGES, enumerate(mode.calls)):
            is_left = call.is_fragile and change is not choose_part
            found: Iterable[Changed] = () if is_left else change(call)
            for changed in found:
                if process_time() > end:
                    return ""
                with suppress(Exception):  # it does not fit
                    places = {at: changed.run, at + 1: changed.run_next}
                    results = (r.run(code, Changes(places)) for r in runners)
                    pairs = zip(results, targets, strict=True)
                    if all(is_same(names.get(name), target) for names, target in pairs):
                        is_mine = code is codes[0]
                        return changed.extra if is_mine else changed.missing
    return ""


def is_same(one: Any, other: Any) -> bool:
    """Whether a result has the shape and the numbers of another one."""
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.shape == other.shape
        and one.numel() <= MOST_ELEMENTS
        and is_near(*(x.detach().to(torch.complex128) for x in (one, other)))
    )


def tell(text: str, was: object, now: object) -> tuple[str, str]:
    """Return a text about a call as it was, and about one as it is changed."""
    return text.format(was, now), text.format(now, was)


KINDRED: Final = (
    ("sum", "mean", "prod", "amax", "amin"),
    ("add", "mul", "sub", "div"),
    ("cat", "stack", "hstack", "vstack"),
    ("tril", "triu"),
    ("softmax", "log_softmax", "sigmoid"),
    ("mse_loss", "l1_loss", "smooth_l1_loss"),
    ("log", "exp", "sqrt", "square", "abs", "neg"),
    ("gt", "ge", "lt", "le", "eq", "ne"),
    ("repeat", "tile", "repeat_interleave"),
    ("std", "var"),
    ("argmax", "argmin"),
    ("zeros", "ones"),
    ("max_pool2d", "avg_pool2d"),
)
"""Functions that are taken for one another."""


def change_function(call: Call) -> Iterator[Changed]:
    """Call another function with the same arguments."""
    for other in (o for names in KINDRED if call.name in names for o in names):
        owners = [p for p in (Tensor, torch, functional) if hasattr(p, other)]

        def run(c: Call, owners: Any = owners, other: str = other) -> Any:
            return getattr(owners[0], other)(*c.args, **c.kwargs)

        if owners and other != call.name:
            yield Changed(
                run, *tell("{} is called, and {} is wanted", call.name, other)
            )


def list_tensors(call: Call) -> list[int]:
    """Return which arguments of a call are tensors of a size that is looked at."""
    return [
        at
        for at, value in enumerate(call.args)
        if isinstance(value, Tensor) and value.numel() <= MOST_ELEMENTS
    ]


REDUCTIONS: Final = frozenset(
    {"sum", "mean", "prod", "amax", "amin", "max", "std", "var", "argmax", "logsumexp"}
)
DIMENSIONS: Final = REDUCTIONS | {
    *("softmax", "log_softmax", "cat", "stack", "unsqueeze", "squeeze", "gather"),
    *("cumsum", "flatten", "unfold", "index_select", "select"),
}
"""Functions whose first whole number is a dimension."""
VIEWS: Final = frozenset({"view", "reshape", "flatten", "unflatten"})
TURNS: Final = frozenset(
    {"transpose", "permute", "T", "mT", "t", "swapaxes", "movedim"}
)


def replace_at(args: Sequence[Any], at: Any, value: Any) -> list[Any]:
    """Return arguments with another one at a place."""
    return [value if n == at else old for n, old in enumerate(args)]


def change_number(call: Call) -> Iterator[Changed]:
    """Give another number, such as a dimension, a diagonal or what a mask writes."""
    rank = max((v.ndim for v in call.args if isinstance(v, Tensor)), default=2)
    is_dim = call.name in DIMENSIONS
    text = "{} is called with {{}}, and another number is wanted"
    if is_dim:
        text = "{} is along dimension {{}}, and another is wanted"
    for key, value in (*enumerate(call.args), *call.kwargs.items()):
        if type(value) not in {int, float} or call.name in {*TURNS, *VIEWS}:
            continue
        for other in range(rank + 1) if is_dim else (value - 1, value + 1, *OTHERS):

            def run(c: Call, key: Any = key, other: Any = other) -> Any:
                named = {key: other} if isinstance(key, str) else {}
                return c.again(*replace_at(c.args, key, other), **named)

            if value not in {other, other - rank * is_dim}:
                told = tell(text.format(call.name), value, other)
                yield Changed(run, *told)


OTHERS: Final = (0, 1, 0.0, -torch.inf, torch.inf)


def leave_out(call: Call) -> Iterator[Changed]:
    """Leave out a call: its first operand is its result."""
    if list_tensors(call)[:1] == [0] and isinstance(call.result, Tensor):
        texts = f"{call.name} is one step too much", f"{call.name} is missing"
        yield Changed(lambda c: c.args[0], *texts)


def change_keepdim(call: Call) -> Iterator[Changed]:
    """Keep a reduced dimension, or not."""
    if call.name in REDUCTIONS:
        keeps = bool(call.kwargs.get("keepdim"))
        texts = tell(f"{call.name} {{}} dimension", "drops its", "keeps its")
        yield Changed(
            lambda c: c.again(*c.args, keepdim=not keeps), *texts[:: -1 if keeps else 1]
        )


def exchange_operands(call: Call) -> Iterator[Changed]:
    """Exchange the first two operands."""
    if list_tensors(call)[:2] == [0, 1]:
        text = f"the operands of {call.name} are exchanged"
        yield Changed(lambda c: c.again(c.args[1], c.args[0], *c.args[2:]), text, text)


def exchange_steps(call: Call) -> Iterator[Changed]:
    """Exchange a call and the one that takes its result."""
    following = call.following
    if following is None or any(isinstance(a, Tensor) for a in following.args[1:]):
        return

    def run(c: Call, other: Call) -> Any:
        return other.function(c.args[0], *other.args[1:], **other.kwargs)

    yield Changed(
        partial(run, other=following),
        *tell(
            "{} is called before {}, and is wanted after it", call.name, following.name
        ),
        partial(run, other=call),
    )


def invert_mask(call: Call) -> Iterator[Changed]:
    """Invert a mask."""
    for at in list_tensors(call):

        def run(c: Call, at: int = at) -> Any:
            return c.again(*replace_at(c.args, at, ~c.args[at]))

        if call.args[at].dtype == torch.bool:
            text = f"the mask of {call.name} is inverted"
            yield Changed(run, text, text)


def turn_operand(call: Call) -> Iterator[Changed]:
    """Exchange two dimensions of an operand."""
    for at in list_tensors(call):
        for pair in combinations(range(call.args[at].ndim), 2):

            def run(c: Call, at: int = at, pair: tuple[int, int] = pair) -> Any:
                function = torch.reshape if c.name == "view" else c.function
                args = replace_at(c.args, at, c.args[at].transpose(*pair))
                return function(*args, **c.kwargs)

            one, other = pair
            text = (
                f"the input of {call.name} has dimensions {one} and {other} exchanged"
            )
            if call.name in VIEWS:
                text = f"{call.name} keeps the order of elements, {ORDER}"
            yield Changed(run, text, text)


ORDER: Final = "and dimensions have to be exchanged before it"


def change_order(call: Call) -> Iterator[Changed]:
    """Make the shape of a transpose by a view."""
    if call.name in TURNS and isinstance(call.result, Tensor):
        yield Changed(
            lambda c: c.args[0].reshape(c.again(*c.args).shape),
            f"{call.name} exchanges dimensions, and a view is wanted",
            "a view keeps the order of elements, and a transpose is wanted",
        )


def turn_result(call: Call) -> Iterator[Changed]:
    """Exchange two dimensions of a result."""
    if isinstance(call.result, Tensor):
        for one, other in combinations(range(call.result.ndim), 2):
            text = (
                f"the result of {call.name} has dimensions {one} and {other} exchanged"
            )

            def run(c: Call, one: int = one, other: int = other) -> Any:
                return c.again(*c.args).transpose(one, other)

            yield Changed(run, text, text)


def choose_part(call: Call) -> Iterator[Changed]:
    """Exchange two of the results of a call."""
    if not isinstance(call.result, tuple | list):
        return
    text = f"{call.name} returns several tensors, and another one of them is wanted"
    for pair in combinations(range(len(call.result)), 2):

        def run(c: Call, pair: tuple[int, int] = pair) -> Any:
            made = [*c.again(*c.args)]
            one, other = pair
            made[one], made[other] = made[other], made[one]
            return tuple(made)

        yield Changed(run, text, text)


def change_index(call: Call) -> Iterator[Changed]:
    """Take another index or slice, or the mean along it."""
    if call.name != "[...]":
        return
    index = as_tuple(call.args[1])
    for at, value in enumerate(index):
        for other, text in change_one_index(value):

            def run(c: Call, at: int = at, other: Any = other) -> Any:
                return c.args[0][tuple(replace_at(as_tuple(c.args[1]), at, other))]

            yield Changed(run, text, text)
        if type(value) is int and isinstance(call.args[0], Tensor):
            dim = at - sum(type(i) is int for i in index[:at])

            def reduce(c: Call, at: int = at, dim: int = dim) -> Any:
                kept = replace_at(as_tuple(c.args[1]), at, slice(None))
                return c.args[0][tuple(kept)].mean(dim)

            text = f"{{}} of dimension {dim} is taken, and {{}} of it is wanted"
            yield Changed(reduce, *tell(text, "one index", "the mean"))


def as_tuple(index: Any) -> tuple[Any, ...]:
    """Return an index as a tuple, which it is with several dimensions."""
    return index if isinstance(index, tuple) else (index,)


def change_one_index(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield other indices, each with what is wrong."""
    if type(value) is int:
        for other in {value - 1, value + 1, 0, 1, -1} - {value}:
            yield other, "another index is wanted"
    elif isinstance(value, slice):
        begin, step = value.start or 0, value.step or 1
        for other in (begin + 1, begin - 1):
            yield slice(other, value.stop, value.step), "a slice begins off by one"
        for other in () if value.stop is None else (value.stop + 1, value.stop - 1):
            yield slice(value.start, other, value.step), "a slice ends off by one"
        for other in (step + 1, max(1, step - 1)):
            yield slice(value.start, value.stop, other), "a slice has another step"


Change: TypeAlias = Callable[[Call], Iterator[Changed]]
CHANGES: Final[Sequence[Change]] = (
    change_function,
    change_number,
    change_keepdim,
    invert_mask,
    change_index,
    choose_part,
    leave_out,
    exchange_operands,
    exchange_steps,
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
    mine, right = (x.detach().to(torch.complex128) for x in plain)
    wrong = (
        ~torch.isclose(mine, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    ).nonzero()
    index = tuple(wrong[-1].tolist())  # the first is often in a corner, as [0, 0]
    elements = [read_element(runner, code, name, index) for code in codes]
    keys = {key: None for reads in elements for key in reads}
    differ = [k for k in keys if elements[0].get(k) != elements[1].get(k)]
    if not differ:
        return ""
    target = f"{name}[{', '.join(map(str, index))}]" if index else name
    read, wanted = (
        " and ".join(reads[key] for key in differ if key in reads) or "nothing else"
        for reads in elements
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
    masks: list[Tensor] = []
    if element.requires_grad:
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(element, asked, materialize_grads=True))
        masks = [(next(found) if x.requires_grad else x * 0) != 0 for x in leaves]
    else:
        masks = [leaf == element for leaf in leaves]
        if sum(int(mask.sum()) for mask in masks) != 1:
            return {}
    pairs = zip(titles, masks, strict=True)
    return {t: format_elements(t, m) for t, m in pairs if m.any()}


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
    given = start(made.given, sizes)
    known = {key: value for key, value in given.items() if type(value) is int}
    places: list[tuple[str, Sizes]] = [
        ("", sizes),
        *((key, {**sizes, key: value + MORE}) for key, value in known.items()),
        *((f"at {other}", other) for other in ({}, *made.sizes)),
    ]
    runs: dict[str, tuple[Any, Any]] = {}
    for key, at in places:
        with suppress(Exception):  # a size that does not fit
            codes = (answer, made.solution)
            mine, right = (run_number(made.given, code, at, name) for code in codes)
            runs[key] = mine, right
    shares = {round(mine / right, 6) for mine, right in runs.values()}
    steps = {mine - right for mine, right in runs.values()}
    if len(shares) == 1:
        return f"it is always {shares.pop():g} times what is wanted"
    if len(steps) == 1:
        return f"it is always {steps.pop():+g} off"
    rises = {
        key: [a - b for a, b in zip(runs[key], runs[""], strict=True)] for key in runs
    }
    wrong = [key for key in known if key in runs and rises[key][0] != rises[key][1]]
    unread = [key for key in wrong if rises[key][0] == 0]
    if unread:
        return f"it does not change with {' and '.join(unread)}"
    texts = (
        f"{rises[key][0]} with {MORE} more for {key}, and {rises[key][1]} is wanted"
        for key in wrong[:2]
    )
    return f"it grows by {'; by '.join(texts)}" if wrong else ""


MORE: Final = 3
"""By how much a given number is changed, to see what changes with it."""


Search: TypeAlias = Callable[["Exercise", str, Sizes, str], str]
SEARCHES: Final[Sequence[Search]] = (find_note, find_change, find_reads, find_growth)


def run_number(given: str, code: str, sizes: Sizes, name: str) -> Any:
    """Return a number that a code computes."""
    names = start(given, sizes)
    exec(compile(code, FILE, "exec"), names)  # noqa: S102  the answer or the solution
    number: Mapping[str, Any] | Any = names[name]
    return number if type(number) in {int, float} else None
