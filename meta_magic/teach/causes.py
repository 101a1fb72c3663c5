"""Find why an answer is wrong: a rule that a call broke, or a wrong call.

A wrong answer runs again with one call of torch changed, and so does the solution: if
``x - x.mean(0)`` becomes right with another dimension of ``mean``, that is the cause.
So it is if the solution with another ``dim`` of ``stack`` gives the learner's numbers.
Else the cause is what an element is computed from: ``c[0, 0] is computed from x[:, 0],
and x[0, :] is wanted``. All this runs in children. Read :func:`find_cause` first.

Numbers that are wrong are compared with changes of the right ones: ``DIFFERENCES`` is a
table of what learners confuse, such as a view for a transpose (:func:`find_faults`).
"""

import linecache
import math
import re
from ast import parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import permutations, product
from time import process_time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.session.record import record
from meta_magic.teach.answer_runs import (
    FILE,
    KNOWN,
    Exercise,
    OtherResult,
    TensorResult,
    ask,
    read_values,
    start,
)
from meta_magic.teach.changed_calls import (
    CHANGES,
    MOST_ELEMENTS,
    Changed,
    Changes,
    TorchCall,
    exchange_results,
)
from meta_magic.trace.units import format_shape
from meta_magic.trials.blocks import Sizes, set_sizes
from meta_magic.trials.sandbox import enter_sandbox

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note


Fault: TypeAlias = tuple[float, str]
"""The points that a wrong result has nevertheless, and what is wrong."""

is_near: Final = partial(torch.allclose, rtol=1e-4, atol=1e-5, equal_nan=True)


def find_faults(name: str, mine: Any, right: Any, view: bool | None) -> Iterator[Fault]:  # noqa: FBT001  three states
    """Yield what is wrong with one result; later faults follow from the first.

    Args:
        name: What the result is called.
        mine: The learner's, as ``read_result`` gives it; so is ``right``.
        view: Whether it must be a view of what is given; None if it may be.
    """
    if isinstance(right, TensorResult):
        if isinstance(mine, TensorResult):
            yield from compare_tensors(name, mine, right, view)
        else:
            yield 0.0, f"{name} is {name_type(mine)}, and no tensor"
    elif isinstance(right, tuple | list) and type(mine) is type(right):
        if len(mine) != len(right):
            yield 0.0, f"{name} has {len(mine)} parts, and {len(right)} are wanted"
        for at, pair in enumerate(zip(mine, right, strict=False)):
            yield from find_faults(f"{name}[{at}]", *pair, view)
    elif type(mine) is not type(right) or mine != right:
        shown = name_type(mine) if isinstance(mine, tuple) else repr(mine)
        yield 0.0, f"{name} is {shown}, and {right!r} is wanted"


def name_type(result: Any) -> str:
    """Return the name of the type of a result."""
    if isinstance(result, OtherResult):
        return result.type
    return "Tensor" if isinstance(result, TensorResult) else type(result).__name__


def compare_tensors(
    name: str,
    mine: TensorResult,
    right: TensorResult,
    view: bool | None,  # noqa: FBT001  three states
) -> Iterator[Fault]:
    """Yield what is wrong with a tensor; see :func:`find_faults`."""
    if mine.kind != right.kind:
        yield 0.0, f"{name} is {mine.kind}, and {right.kind} is wanted"
        return
    if mine.shape != right.shape:
        shapes = f"{format_shape(mine.shape)}, and {format_shape(right.shape)}"
        kind = describe_shape(mine.shape, right.shape)
        yield 0.0, f"{name} is {shapes} is wanted: {kind}"
        return
    if mine.values is None or right.values is None:  # on meta, or sparse
        yield 0.0, f"{name} has no numbers that can be compared"
        return
    difference = describe_values(read_values(mine), read_values(right))
    if difference:
        yield 0.25, f"{name} has the right shape, and other numbers: {difference}"
    if mine.dtype != right.dtype:
        yield 0.75, f"{name} is {mine.dtype}, and {right.dtype} is wanted"
    if mine.requires_grad and not right.requires_grad:
        yield 0.75, f"{name} requires a gradient, so its whole graph stays in memory"
    if view is not None and mine.is_view != view:
        kinds = "a copy, and a view" if view else "a view, and a copy"
        yield 0.75, f"{name} has the right numbers, but it is {kinds} is wanted"


def describe_shape(mine: tuple[int, ...], right: tuple[int, ...]) -> str:
    """Return the kind of a wrong shape: rank, order or size."""
    if len(mine) != len(right):
        plural = "" if len(right) == 1 else "s"
        return f"it has {len(right)} dimension{plural}, not {len(mine)}"
    if sorted(mine) == sorted(right):
        return "the sizes are right, their order is not"
    wrong = [d for d in range(len(mine)) if mine[d] != right[d]]
    dims = " and ".join(map(str, wrong))
    if len(wrong) == 1:
        return f"dimension {dims} has another size"
    return f"dimensions {dims} have other sizes"


def find_order(a: Tensor, b: Tensor) -> str:
    """Look for the right numbers in another order."""
    for dims in permutations(range(a.ndim)):
        turned = b.permute(dims)
        if turned.shape == a.shape and is_near(turned, a):
            moved = [d for d, other in enumerate(dims) if d != other]
            if len(moved) == 2:  # noqa: PLR2004  a pair
                return f"its dimensions {moved[0]} and {moved[1]} are exchanged"
            return "its dimensions are in another order"
    for dim, size in enumerate(a.shape):
        if is_near(a, b.flip(dim)):
            return f"the right ones, backwards along dimension {dim}"
        if size <= 2:  # noqa: PLR2004  a pair is turned
            continue
        later, sooner = (
            [x.narrow(dim, start, size - 1) for x, start in ((a, one), (b, 1 - one))]
            for one in (1, 0)
        )
        if is_near(*later) or is_near(*sooner):
            return f"the right ones, shifted by one along dimension {dim}"
    if not a.is_complex() and is_near(a.flatten().sort()[0], b.flatten().sort()[0]):
        return "the same ones in another order"
    return ""


def find_scale(a: Tensor, b: Tensor) -> str:
    """Look for a constant factor or difference."""
    if not (a.isfinite() & b.isfinite()).all():
        return ""
    step, used = (a - b).flatten(), b != 0
    if used.any() and not a.is_complex() and is_near(a[~used], b[~used]):
        ratio = a[used] / b[used]
        factor = float(ratio[0])
        if is_near(ratio, ratio[0].expand_as(ratio)):
            return describe_factor(factor, is_sure=ratio.numel() > 1)
    if a.numel() > 1 and is_near(step, step[0].expand_as(step)):
        return f"each is {step[0].real:+.4g} off"
    return ""


def describe_factor(factor: float, *, is_sure: bool) -> str:
    """Return what a constant factor between wrong and right numbers says.

    Args:
        is_sure: Whether several numbers have it; of one, only whole ones are said.
    """
    if math.isclose(factor, -1, rel_tol=1e-4):
        return "the right ones with the other sign"
    parts = (factor, 1 / factor) if factor else ()
    is_whole = any(math.isclose(n, round(n), rel_tol=1e-4) for n in parts)
    return f"{factor:.4g} times what is wanted" if is_sure or is_whole else ""


FUNCTIONS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("square roots", torch.sqrt),
    ("squares", torch.square),
    ("exponentials", torch.exp),
    ("logarithms", torch.log),
    ("reciprocals", torch.reciprocal),
    ("amounts without the sign", torch.abs),
)


def find_function(a: Tensor, b: Tensor) -> str:
    """Look for a function of the right numbers, or for numbers that it makes right."""
    if not a.isfinite().all() or a.is_complex():
        return ""
    for name, function in FUNCTIONS:
        if is_near(a, function(b)):
            return f"the {name} of the right ones"
    return ""


def find_mask(a: Tensor, b: Tensor) -> str:
    """Look for a mask that sets other elements, or sets them to another number."""
    wrong = ~torch.isclose(a, b, 1e-4, 1e-5, equal_nan=True)
    n_wrong = int(wrong.sum())
    if n_wrong < 2 or a.is_complex():  # noqa: PLR2004  one number is always constant
        return ""
    mine, right = find_constant(a[wrong]), find_constant(b[wrong])
    if mine and right:
        return f"{mine} stands where {right} is wanted"
    constants = (
        (mine, right) for right in list_repeated(b) for mine in list_repeated(a)
    )
    for one, other in constants:
        is_set, should_be = a == one, b == other
        same = ~(is_set | should_be)
        if not (is_set & should_be).any() and is_near(a[same], b[same]):
            wanted = "" if one == other else f", and {other:g} is wanted"
            return f"{one:g} stands where it should not: a mask is inverted{wanted}"
    if mine:
        return f"{n_wrong} are {mine}, and should not be"
    return f"{n_wrong} should be {right}, and are not" if right else ""


def find_constant(values: Tensor) -> str:
    """Return the number that all elements are, as text; "" if they differ."""
    is_one = is_near(values, values[:1].expand_as(values))
    return f"{values[0] + 0.0:g}" if is_one else ""  # no -0


def list_repeated(values: Tensor) -> list[float]:
    """Return the numbers that most elements are, if several are."""
    found, counts = values.unique(return_counts=True)
    most = counts.argsort(descending=True)[:3]
    return [float(found[n]) + 0.0 for n in most if counts[n] > 1]  # no -0


DIFFERENCES: Final = (find_order, find_scale, find_function, find_mask)
"""Each looks for one kind of change by which right numbers become a learner's."""


def describe_values(a: Tensor, b: Tensor) -> str:
    """Return how numbers of the right shape are wrong; "" if they are right."""
    if a.is_complex() != b.is_complex():
        a, b = a.to(torch.complex128), b.to(torch.complex128)
    if is_near(a, b):
        return ""
    for find in DIFFERENCES:
        text = find(a, b)
        if text:
            return text
    wrong = (~torch.isclose(a, b, 1e-4, 1e-5, equal_nan=True)).nonzero()
    first = tuple(wrong[0].tolist())
    if not first:
        return f"{a:.4g} for {b:.4g}"
    at = ", ".join(map(str, first))
    values = f"{a[first]:.4g} for {b[first]:.4g}"
    return f"{len(wrong)} of {a.numel()} are wrong; the first, at [{at}], is {values}"


SECONDS: Final = 1.5
"""Processor time that the search for a changed call may take."""


def explain_error(made: Exercise, answer: str, sizes: Sizes, error: str) -> str:
    """Return why an answer fails: the rule that a call broke, without its repairs."""
    enter_sandbox()
    found = None
    with suppress(Exception):  # the error itself is enough
        found = record_answer(made, answer, sizes).explanation
    if found is None or not found.is_of_torch:
        return error
    return ". ".join([f"{found.expression}: {error.rstrip('.')}", *found.rules[:1]])


def find_cause(made: Exercise, answer: str, sizes: Sizes, name: str) -> str:
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


def record_answer(made: Exercise, answer: str, sizes: Sizes) -> Any:
    """Return the trace of an answer, on meta."""
    text = f"{answer}\n"
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    names: dict[str, Any] = {**KNOWN}
    given = compile(set_sizes(parse(made.given), sizes), "<given>", "exec")
    code = compile(text, FILE, "exec")
    with suppress(Exception), record(as_device="cpu", check=True) as trace:
        exec(given, names)  # noqa: S102  the exercise
        exec(code, names)  # noqa: S102  the answer
    return trace


def find_note(made: Exercise, answer: str, sizes: Sizes, _: str) -> str:
    """Return what ``--check`` notes of an answer that runs and is wrong."""
    notes: Sequence[Note] = record_answer(made, answer, sizes).wrong
    # Lines of such a note are those of this file, which runs the answer.
    return re.sub(r" \(line \d+\)", "", notes[0].text) if notes else ""


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


def find_change(made: Exercise, answer: str, _: Sizes, name: str) -> str:
    """Return which call is another one than is wanted."""
    codes = [compile(code, FILE, "exec") for code in (answer, made.solution)]
    runners = [Runner(made.given, sizes) for sizes in ({}, *made.sizes)]
    end = process_time() + SECONDS
    for code, other in (codes, reversed(codes)):
        targets = [runner.run(other).get(name) for runner in runners]
        mode = Changes()
        runners[0].run(code, mode)
        if code is codes[0]:
            called = {call.name for call in mode.calls}
        for change, (at, call) in product(CHANGES, enumerate(mode.calls)):
            is_left = call.is_fragile and change is not exchange_results
            found: Iterable[Changed] = () if is_left else change(call)
            for changed in found:
                if process_time() > end:
                    return ""
                with suppress(Exception):  # it does not fit
                    runs = {at: changed.run, at + 1: changed.run_next}
                    results = (r.run(code, Changes(runs)) for r in runners)
                    pairs = zip(results, targets, strict=True)
                    if all(is_same(names.get(name), target) for names, target in pairs):
                        if code is codes[0]:
                            return changed.extra
                        return say_of_solution(changed, call, called)
    return ""


def say_of_solution(changed: Changed, call: TorchCall, called: Collection[str]) -> str:
    """Return what is wrong with an answer that gives what a changed solution gives.

    Args:
        changed: The change.
        call: The call of the solution that is changed.
        called: The functions that the answer calls.
    """
    text = changed.missing or changed.extra
    words = text.split()
    is_true = call.name not in words or "missing" in words or "view" in words
    return text if is_true or {*words} & {*called} else f"the numbers are as if {text}"


def is_same(one: Any, other: Any) -> bool:
    """Whether a result has the shape and the numbers of another one."""
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.shape == other.shape
        and one.numel() <= MOST_ELEMENTS
        and is_near(*(x.detach().to(torch.complex128) for x in (one, other)))
    )


def find_reads(made: Exercise, answer: str, sizes: Sizes, name: str) -> str:
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
    if not all(elements) or elements[0] == elements[1]:
        return ""
    differ = [k for k in keys if elements[0].get(k) != elements[1].get(k)]
    if not all({*differ} & {*reads} for reads in elements):
        differ = [*keys]
    target = f"{name}[{', '.join(map(str, index))}]" if index else name
    read, wanted = (
        " and ".join(reads[key] for key in differ if key in reads) for reads in elements
    )
    return f"{target} is computed from {read}, instead of {wanted}"


def read_element(
    runner: Runner, code: Any, name: str, index: tuple[int, ...]
) -> dict[str, str]:
    """Return which elements of each given tensor an element is computed from.

    By its gradient; that of numbers without one, by where its value stands.
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
    mode = Changes()
    runner.run(code, mode)
    detached = [at for at, call in enumerate(mode.calls) if call.name == "detach"]
    mode = Changes(dict.fromkeys(detached, lambda call: call.args[0]))
    element = runner.run(code, mode, make)[name][index]
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


def compare_growth(made: Exercise, answer: str, sizes: Sizes, name: str) -> str:
    """Return how a wrong number depends on the given ones."""
    given = start(made.given, sizes)
    known = {key: value for key, value in given.items() if type(value) is int}
    asked: list[tuple[str, Sizes]] = [
        ("", sizes),
        *((key, {**sizes, key: value + MORE}) for key, value in known.items()),
        *((f"at {other}", other) for other in ({}, *made.sizes)),
    ]
    runs: dict[str, tuple[Any, Any]] = {}
    for key, at in asked:
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


Search: TypeAlias = Callable[[Exercise, str, Sizes, str], str]
SEARCHES: Final[Sequence[Search]] = (find_note, find_change, find_reads, compare_growth)


def run_number(given: str, code: str, sizes: Sizes, name: str) -> Any:
    """Return a number that a code computes."""
    names = start(given, sizes)
    exec(compile(code, FILE, "exec"), names)  # noqa: S102  the answer or the solution
    number: Mapping[str, Any] | Any = names[name]
    return number if type(number) in {int, float} else None
