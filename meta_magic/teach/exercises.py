"""Exercises: a teacher's definition, and the grade of a learner's answer.

``mm.exercise("outer", given=..., solution=..., wants=["x"])`` defines one; the learner
answers in a cell ``%%meta --exercise outer``, and ``mm.grade("outer")`` is its grade.
The answer and the solution run in a child process, on the CPU, at the given sizes and
at others: shapes alone would accept ``view`` for ``permute``. Read :func:`grade_answer`
first.
"""

import ast
import inspect
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from meta_magic.errors import ExerciseError
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_children,
    can_fork,
)
from meta_magic.session.record import record
from meta_magic.trace.units import format_shape
from meta_magic.trials.blocks import set_sizes
from meta_magic.trials.sandbox import enter_sandbox

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note

SECONDS: Final = 10.0
"""How long an answer may take."""

FILE: Final = "<answer>"
"""The name of the file that an answer's code has."""

Sizes: TypeAlias = Mapping[str, int]


class Exercise(NamedTuple):
    """An exercise, as :func:`exercise` takes it."""

    name: str
    given: str
    solution: str
    wants: tuple[str, ...]
    sizes: tuple[Sizes, ...] = ()
    view: bool | None = None
    hints: tuple[str, ...] = ()


class Grade(NamedTuple):
    """What an answer gets.

    Attributes:
        points: From 0 to 1.
        text: Why it is not 1: what is wrong, and never the solution.
        has_ended: Whether the answer ran to an end; one that did not is not run again.
    """

    points: float
    text: str
    has_ended: bool = True

    def __str__(self) -> str:
        return f"{'✓' if self.points == 1 else '✗'} {self.text}"


exercises: dict[str, Exercise] = {}
answers: dict[str, str] = {}
"""The newest answer to each exercise, also to one that a hidden test defines later."""

grades: dict[str, list[Grade]] = {}
"""The grades of each exercise's answers, in the order in which they were given."""


def exercise(
    name: str,
    given: str,
    solution: str,
    wants: Sequence[str],
    sizes: Sequence[Sizes] = (),
    *,
    view: bool | None = None,
    hints: Sequence[str] = (),
) -> None:
    """Define an exercise, which cells ``%%meta --exercise NAME`` answer.

    Args:
        name: Its name; another definition of the same name replaces it.
        given: Code that runs before the answer. Its sizes are small: answers run on
            the CPU, and have 10 seconds.
        solution: Code that computes what is wanted.
        wants: The names of the results.
        sizes: Other values of numbers that ``given`` assigns, at which an answer has
            to be right, too.
        view: True if each result must be a view of a given tensor, False if none may
            be one; None if both are right.
        hints: Sentences that are shown one after each wrong answer.

    Raises:
        ExerciseError: The solution does not run, or does not make what is wanted.

    Example:
        >>> exercise("outer", "a = torch.arange(3)", "x = a[:, None] * a", ["x"])
        >>> grade("outer", "x = a * a[:, None]")
        1.0
        >>> grade("outer", "x = a * a")
        ✗ x is (3,), and (3, 3) is wanted: it has 2 dimensions, not 1.
        0.0
    """
    wants = (wants,) if isinstance(wants, str) else wants
    made = Exercise(
        name,
        inspect.cleandoc(given),
        inspect.cleandoc(solution),
        tuple(wants),
        tuple(sizes),
        view,
        tuple(hints),
    )
    if not made.solution.strip():
        raise ExerciseError(f"the exercise {name!r} has no solution")
    if not made.wants:
        raise ExerciseError(f"the exercise {name!r} does not say which names it wants")
    found = grade_answer(made, made.solution)
    if found.points < 1:
        raise ExerciseError(f"the solution of {name!r} is refused: {found.text}")
    exercises[name] = made
    grades[name] = []


def grade(name: str, answer: str | None = None) -> float:
    """Return the points of an exercise's answer, from 0 to 1, and print why.

    It raises nothing and writes nothing to stderr, as nbgrader wants it.

    Args:
        name: The exercise.
        answer: The code of the answer; None for the newest ``%%meta --exercise NAME``.

    Example:
        >>> exercise("last", "x = torch.arange(6).view(2, 3)", "y = x[:, -1]", ["y"])
        >>> grade("last", "y = x[-1]")
        ✗ y is (3,), and (2,) is wanted: dimension 0 has another size.
        0.0
    """
    if name not in exercises:
        known = ", ".join(exercises) or "none"
        print(f"there is no exercise {name!r}; there are: {known}")  # noqa: T201  asked for
        return 0.0
    if answer is None and not grades[name]:
        answer = answers.get(name)
    if answer is not None:
        add_grade(name, answer)
    if not grades[name]:
        print(f"✗ no answer yet: begin a cell with %%meta --exercise {name}")  # noqa: T201  as above
        return 0.0
    newest = grades[name][-1]
    if newest.points < 1:
        print(newest)  # noqa: T201  as above
        n_wrong = sum(one.points < 1 for one in grades[name])
        for hint in exercises[name].hints[n_wrong - 1 : n_wrong]:
            print(f"hint: {hint}")  # noqa: T201  as above
    return newest.points


def add_grade(name: str, answer: str) -> Grade:
    """Grade an answer, and keep the grade."""
    found = grade_answer(exercises[name], answer)
    grades[name].append(found)
    return found


def grade_answer(made: Exercise, answer: str) -> Grade:
    """Return the grade of an answer, which runs in a child process."""
    try:
        ast.parse(answer)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 1)
        return Grade(0.0, f"line {line} of the answer is no Python: {error}")
    if not can_fork():
        return Grade(0.0, "grading needs a system that can fork, as Linux or macOS")
    ask = partial(judge, made, answer)
    (found,) = ask_children([ask], SECONDS, SECONDS)
    if found is NO_ANSWER:
        late = f"it did not end: it calls exit, crashes, or takes over {SECONDS:g} s"
        return Grade(0.0, late, has_ended=False)
    return Grade(*found)


Judged: TypeAlias = tuple[float, str, bool]
"""The fields of a grade."""


def judge(made: Exercise, answer: str) -> Judged:
    """Return the grade of an answer at all sizes; runs in the child."""
    refused = enter_sandbox()
    for sizes in ({}, *made.sizes):
        found = judge_at(made, answer, sizes, refused)
        if found is not None:
            return found
    return 1.0, "right", True


def judge_at(
    made: Exercise, answer: str, sizes: Sizes, refused: Sequence[str]
) -> Judged | None:
    """Return the grade of an answer that is wrong at some sizes; None if it is right.

    Args:
        refused: What the sandbox refuses.
    """
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    at = at and f" with {at}, and is right at the given sizes"
    try:
        wanted = run(made, made.solution, sizes)
    except Exception as error:  # noqa: BLE001  the teacher's
        return 0.0, f"the solution fails{at}: {type(error).__name__}: {error}", True
    for name in made.wants:
        if name not in wanted:
            return 0.0, f"the solution makes no {name}", True
    what = ""
    try:
        found = run(made, answer, sizes)
    except Exception as error:  # noqa: BLE001  the learner's
        cause = explain_error(made, answer, sizes, error)
        return 0.5 * bool(sizes), f"it fails{at}. {cause}", True
    except BaseException as error:  # noqa: BLE001  a refusal, or an exit
        what = f"raises {type(error).__name__}"
    if refused or what:  # also a refusal that the answer caught
        what = refused[0] if refused else what
        return 0.0, f"it {what}, which an answer may not do", False
    for name in made.wants:
        for points, text in find_faults(made, name, found, wanted):
            notes = list_notes(made, answer, sizes) if points < MOSTLY else []
            said = " ".join([f"{text}{at}.", *notes])
            return max(points, 0.5 * bool(sizes)), said, True
    return None


MOSTLY: Final = 0.75


def run(made: Exercise, code: str, sizes: Sizes) -> dict[str, Any]:
    """Return the names that the given code and an answer make, at some sizes."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional}
    given = set_sizes(ast.parse(made.given), sizes)
    exec(compile(given, "<given>", "exec"), names)  # noqa: S102  the exercise
    names["__given__"] = {k: v for k, v in names.items() if isinstance(v, Tensor)}
    exec(compile(code, FILE, "exec"), names)  # noqa: S102  the answer
    return names


def find_faults(
    made: Exercise, name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> Iterator[tuple[float, str]]:
    """Yield what is wrong with one result, and the points that it has nevertheless.

    The first fault is the one that is said: later ones follow from it.
    """
    given, mine, right = found["__given__"], found.get(name), wanted[name]
    if name not in found:
        yield 0.0, f"there is no {name}: {GIVE}"
    elif isinstance(right, Tensor) and isinstance(mine, Tensor):
        is_given = mine is given.get(name, ...)
        for points, text in compare_tensors(made, name, mine, right, given.values()):
            # What was given is right only if the answer changed it in place.
            yield (0.0, f"there is no {name}: {GIVE}") if is_given else (points, text)
    elif isinstance(right, Tensor):
        yield 0.0, f"{name} is {type(mine).__name__}, and no tensor"
    elif type(mine) is not type(right):
        yield 0.0, f"{name} is {mine!r}, and {right!r} is wanted"
    elif isinstance(right, tuple | list):
        parts: Any = mine
        if len(parts) != len(right):
            yield 0.0, f"{name} has {len(parts)} parts, and {len(right)} are wanted"
        for at, pair in enumerate(zip(parts, right, strict=False)):
            part = f"{name}[{at}]"
            own, other = ({part: one, "__given__": given} for one in pair)
            yield from find_faults(made, part, own, other)
    elif mine != right:
        yield 0.0, f"{name} is {mine!r}, and {right!r} is wanted"


GIVE: Final = "give your result this name"


def compare_tensors(
    made: Exercise, name: str, mine: Tensor, right: Tensor, given: Iterable[Tensor]
) -> Iterator[tuple[float, str]]:
    """Yield what is wrong with a tensor; see :func:`find_faults`."""
    if (mine.device, mine.layout) != (right.device, right.layout):
        kinds = [f"{x.layout} on {x.device}" for x in (mine, right)]
        yield 0.0, f"{name} is {kinds[0]}, and {kinds[1]} is wanted"
        return
    if mine.shape != right.shape:
        kind = describe_shape(tuple(mine.shape), tuple(right.shape))
        shapes = f"{format_shape(mine.shape)}, and {format_shape(right.shape)}"
        yield 0.0, f"{name} is {shapes} is wanted: {kind}"
        return
    difference = describe_values(mine.detach(), right.detach())
    if difference:
        yield 0.25, f"{name} has the right shape, and other numbers: {difference}"
    if mine.dtype != right.dtype:
        yield 0.75, f"{name} is {mine.dtype}, and {right.dtype} is wanted"
    if mine.requires_grad and not right.requires_grad:
        yield 0.75, f"{name} requires a gradient, so its whole graph stays in memory"
    is_view = any(shares(mine, tensor) for tensor in given)
    if made.view is not None and is_view != made.view:
        words = "a copy, and a view" if made.view else "a view, and a copy"
        yield 0.75, f"{name} has the right numbers, but it is {words} is wanted"


def shares(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are on one storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def describe_shape(mine: tuple[int, ...], right: tuple[int, ...]) -> str:
    """Return the kind of a wrong shape: rank, order or size."""
    if len(mine) != len(right):
        plural = "" if len(right) == 1 else "s"
        return f"it has {len(right)} dimension{plural}, not {len(mine)}"
    if sorted(mine) == sorted(right):
        return "the sizes are right, their order is not"
    wrong = [d for d in range(len(mine)) if mine[d] != right[d]]
    one = len(wrong) == 1
    dims = " and ".join(map(str, wrong))
    if one:
        return f"dimension {dims} has another size"
    return f"dimensions {dims} have other sizes"


def describe_values(mine: Tensor, right: Tensor) -> str:
    """Return how numbers of the right shape are wrong; "" if they are right."""
    is_complex = mine.is_complex() or right.is_complex()
    wide = torch.complex128 if is_complex else torch.float64
    a, b = mine.to(wide), right.to(wide)
    is_near = partial(torch.allclose, rtol=1e-4, atol=1e-5, equal_nan=True)
    if is_near(a, b):
        return ""
    turned = (a.permute(dims) for dims in permutations(range(a.ndim)))
    if any(one.shape == b.shape and is_near(one, b) for one in turned):
        return "its dimensions are in another order"
    if not a.is_complex() and is_near(a.flatten().sort()[0], b.flatten().sort()[0]):
        return "the same ones in another order, as view gives them for permute"
    step, ratio = (a - b).flatten(), (a / b).flatten()
    is_scaled = bool(ratio.isfinite().all()) and is_near(
        ratio, ratio[0].expand_as(ratio)
    )
    if is_scaled and (a.numel() > 1 or is_near(ratio, ratio.round())):
        return f"{ratio[0].real:.4g} times what is wanted"
    if a.numel() > 1 and is_near(step, step[0].expand_as(step)):
        return f"each is {step[0].real:+.4g} off"
    wrong = (~torch.isclose(a, b, 1e-4, 1e-5, equal_nan=True)).nonzero()
    first = tuple(wrong[0].tolist())
    at = ", ".join(map(str, first))
    values = f"{a[first]:.4g} for {b[first]:.4g}"
    return f"{len(wrong)} of {a.numel()} are wrong; the first, at [{at}], is {values}"


def record_answer(made: Exercise, answer: str, sizes: Sizes) -> Any:
    """Return the trace of an answer, on meta."""
    text = f"{answer}\n"
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional}
    given = compile(set_sizes(ast.parse(made.given), sizes), "<given>", "exec")
    code = compile(text, FILE, "exec")
    with suppress(Exception), record(as_device="cpu", check=True) as trace:
        exec(given, names)  # noqa: S102  the exercise
        exec(code, names)  # noqa: S102  the answer
    return trace


def explain_error(made: Exercise, answer: str, sizes: Sizes, error: Exception) -> str:
    """Return why an answer fails: the rule that a call broke, without its repairs."""
    said = f"{type(error).__name__}: {error}".split("\n")[0]
    found = None
    with suppress(Exception):  # the error itself is enough
        found = record_answer(made, answer, sizes).explanation
    if found is None or not found.is_of_torch:
        return said
    return " ".join([f"{found.expression}: {said}.", *found.rules[:2]])


def list_notes(made: Exercise, answer: str, sizes: Sizes) -> list[str]:
    """Return what ``--check`` notes of an answer that runs and is wrong."""
    notes: Sequence[Note] = ()
    with suppress(Exception):  # a note is an extra
        notes = record_answer(made, answer, sizes).wrong
    # Lines of such a note are those of this file, which runs the answer.
    texts = [re.sub(r" \(line \d+\)", "", note.text) for note in notes[:1]]
    return [f"{text[:1].upper()}{text[1:]}." for text in texts]
