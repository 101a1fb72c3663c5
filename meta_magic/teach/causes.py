"""Find why an answer is wrong: a rule that a call broke, or a wrong call.

A wrong answer runs again with one call of torch changed, and so does the solution: if
``x - x.mean(0)`` becomes right with another dimension of ``mean``, that is the cause.
So it is if the solution with another ``dim`` of ``stack`` gives the learner's numbers.
Else the cause is what an element is computed from: ``c[0, 0] is computed from x[:, 0],
and x[0, :] is wanted``. All this runs in children. Read :func:`find_cause` first.
"""

import linecache
import re
from ast import parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import product
from time import process_time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.session.record import record
from meta_magic.teach.answer_runs import FILE, KNOWN, Exercise, ask, start
from meta_magic.teach.changed_calls import (
    CHANGES,
    MOST_ELEMENTS,
    Changed,
    Changes,
    TorchCall,
    exchange_results,
)
from meta_magic.teach.faults import is_near
from meta_magic.trials.blocks import Sizes, set_sizes
from meta_magic.trials.sandbox import enter_sandbox

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note

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
