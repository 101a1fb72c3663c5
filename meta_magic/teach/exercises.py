"""Exercises: a teacher's definition, and the grade of a learner's answer.

``mm.exercise("outer", given=..., solution=..., wants=["x"])`` defines one; the learner
answers in a cell ``%%meta --exercise outer``, and ``mm.grade("outer")`` is its grade.
The answer and the solution run in a child process, on the CPU, at the given sizes and
at others: shapes alone would accept ``view`` for ``permute``. Read :func:`grade_answer`
first.

Notebooks have exercises, too: :func:`build` makes the copy of a learner.

A cell that defines an exercise is plain code with a few comments::

    %%exercise outer
    N, M = 3, 4
    a, b = torch.arange(N), torch.arange(M)
    # sizes: N=5, M=2
    # hint: a[:, None] has the shape (N, 1).
    ### BEGIN SOLUTION
    x = a[:, None] + b
    ### END SOLUTION

``meta-magic class build`` packs the solution into a comment: out of sight, and not
secret. For a secret one, call ``mm.exercise`` in a hidden test of nbgrader.
"""

import base64
import csv
import inspect
import json
import re
import sys
import zlib
from ast import Assign, Name, Store, parse, walk
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from meta_magic.children import NO_ANSWER, can_fork
from meta_magic.errors import ExerciseError, hint_at
from meta_magic.teach.answer_runs import (
    LONGEST,
    SECONDS,
    AnswerRun,
    Exercise,
    TensorResult,
    ask,
    format_error,
    run_answer,
)
from meta_magic.teach.causes import explain_error, find_cause, find_faults
from meta_magic.trials.blocks import ASSIGNMENTS, Sizes


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
            the CPU, and have 5 seconds of its time.
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
        >>> grade("outer", "x = a[:, None] * a.float()")
        ✗ x is torch.float32, and torch.int64 is wanted.
        0.75
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
        >>> grade("last", "y = [2, 5]")
        ✗ y is list, and no tensor.
        0.0
    """
    if name not in [*exercises]:  # also what cannot be a key
        known = ", ".join(exercises) or "none"
        hint = hint_at(name, exercises)
        say(f"✗ there is no exercise {name!r}; there are: {known}{hint}")
        return 0.0
    if answer is None and not grades[name]:
        answer = answers.get(name)
    if answer is not None:
        add_grade(name, answer)
    if not grades[name]:
        say(f"✗ no answer yet: begin a cell with %%meta --exercise {name}")
        return 0.0
    newest = grades[name][-1]
    if newest.points < 1:
        say(str(newest))
        n_wrong = sum(one.points < 1 for one in grades[name])
        for hint in exercises[name].hints[n_wrong - 1 : n_wrong]:
            say(f"hint: {hint}")
    return newest.points


def say(text: str) -> None:
    """Print a text; what the output cannot write is replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))  # noqa: T201  asked for


def add_grade(name: str, answer: str) -> Grade:
    """Grade an answer, and keep the grade."""
    found = grade_answer(exercises[name], answer)
    grades[name].append(found)
    return found


def grade_answer(made: Exercise, answer: str) -> Grade:
    """Return the grade of an answer, which runs in a child process."""
    if not can_fork():
        return Grade(0.0, "grading needs a system that can fork, as Linux or macOS")
    try:
        found = compare(made, answer)
    except Exception as error:  # noqa: BLE001  of what an answer made itself
        found = Grade(0.0, f"its result cannot be read: {format_error(error)}")
    text = found.text if len(found.text) <= LONGEST else f"{found.text[:LONGEST]}…"
    return found._replace(text=text.encode("utf-8", "replace").decode())


def compare(made: Exercise, answer: str) -> Grade:
    """Return the grade of an answer by its results beside those of the solution."""
    sizes = ({}, *made.sizes)
    right, mine = ask(
        partial(run_answer, made.given, code, made.wants, sizes)
        for code in (made.solution, answer)
    )
    if right is NO_ANSWER:
        return Grade(0.0, "the solution did not end", has_ended=False)
    if mine is NO_ANSWER:
        late = f"it did not end: it crashes, sleeps, or takes over {SECONDS:g} s"
        return Grade(0.0, late, has_ended=False)
    for at, wanted, found in zip(sizes, right, mine, strict=True):
        grade = compare_at(made, answer, at, wanted, found)
        if grade is not None:
            return grade
    return Grade(1.0, "right")


def compare_at(
    made: Exercise, answer: str, sizes: Sizes, wanted: AnswerRun, found: AnswerRun
) -> Grade | None:
    """Return the grade of an answer at some sizes; None if it is right."""
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    at = at and f" with {at}, and is right at the given sizes"
    missing = [name for name in made.wants if name not in wanted.results]
    if missing:
        text = wanted.error or wanted.refusal or f"it makes no {missing[0]}"
        return Grade(0.0, f"the solution fails{at}: {text}")
    least = 0.5 * bool(sizes)
    if found.refusal:
        text = f"it {found.refusal}, which an answer may not do"
        return Grade(0.0, text, has_ended=False)
    if found.error:
        (cause,) = ask([partial(explain_error, made, answer, sizes, found.error)])
        said = found.error if cause is NO_ANSWER else cause
        return Grade(least, f"it fails{at}. {said}")
    for name in made.wants:
        mine, right = found.results.get(name, ...), wanted.results[name]
        fault = next(find_faults(name, mine, right, made.view), None)
        if fault is None:
            continue
        points, text = fault
        # What was given is right only if the answer changed it in place.
        if mine is ... or (isinstance(mine, TensorResult) and mine.is_given):
            return Grade(least, f"there is no {name}: give your result this name")
        said = ""
        if points < MOSTLY:
            cause = find_cause(made, answer, sizes, name)
            said = f" Cause: {cause}." if cause else ""
        return Grade(max(points, least), f"{text}{at}.{said}")
    return None


MOSTLY: Final = 0.75
"""Points of an answer whose numbers are right."""


SOLUTION: Final = re.compile(
    r"^### BEGIN SOLUTION\n(.*?)^### END SOLUTION[^\n]*\n?", re.MULTILINE | re.DOTALL
)
COMMENT: Final = re.compile(
    r"^# (sizes|wants|view|hint|solution): *(.*)\n?", re.MULTILINE
)
ANSWER: Final = re.compile(r"\s*%%meta\b.*--exercise[ =]['\"]?([\w-]+).*\n")
VIEWS: Final = {"": None, "yes": True, "no": False}
CODE: Final = ">>> import meta_magic as mm\n>>> mm.grade({name!r})\n1.0"


def read_cell(name: str, cell: str) -> Exercise:
    """Return the exercise that a cell ``%%exercise NAME`` defines.

    Raises:
        ExerciseError: It has no solution, or a part that cannot be read.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise ExerciseError(
            f"{name!r} is no name of an exercise: letters, digits and hyphens"
        )
    found = SOLUTION.search(cell)
    solution = found[1] if found else ""
    said: dict[str, list[str]] = {}
    for comment in COMMENT.finditer(cell):
        said.setdefault(comment[1], []).append(comment[2].strip())
    if "solution" in said:
        solution = zlib.decompress(base64.b64decode(said["solution"][0])).decode()
    if not solution.strip():
        raise ExerciseError(f"the exercise {name!r} has no solution between its marks")
    try:
        statements = parse(solution).body
    except SyntaxError as error:
        text = f"the solution of {name!r} is no Python: {error.msg}"
        raise ExerciseError(text) from None
    assigned = [one for one in statements if isinstance(one, ASSIGNMENTS)]
    targets = [
        t
        for a in assigned
        for t in (a.targets if isinstance(a, Assign) else [a.target])
    ]
    names = (n for target in targets for n in walk(target) if isinstance(n, Name))
    written = [name.id for name in names if isinstance(name.ctx, Store)]
    wants = [w for text in said.get("wants", ()) for w in re.split(r"[ ,]+", text)]
    if not wants and not written:
        raise ExerciseError(f"the solution of {name!r} gives no name to a result")
    sizes = [
        {key: int(value) for key, value in re.findall(r"(\w+) *= *(\d+)", text)}
        for text in said.get("sizes", ())
    ]
    view = said.get("view", [""])[-1]
    if view not in VIEWS:
        raise ExerciseError(f"{name!r}: '# view: {view}' is neither yes nor no")
    given = COMMENT.sub("", SOLUTION.sub("", cell))
    unknown = {key for one in sizes for key in one} - {*re.findall(r"\w+", given)}
    if unknown or not all(sizes):
        text = (
            f"'# sizes: {', '.join(said['sizes'])}' names no number of the given code"
        )
        raise ExerciseError(f"{name!r}: {text}")
    return Exercise(
        name,
        given,
        solution,
        tuple(wants or dict.fromkeys(written)),
        tuple(sizes),
        VIEWS[view],
        tuple(said.get("hint", ())),
    )


def hide_solution(cell: str) -> str:
    """Return a cell with its solution packed into a comment."""

    def pack(found: re.Match[str]) -> str:
        packed = base64.b64encode(zlib.compress(found[1].encode())).decode()
        return f"# solution: {packed}\n"

    return SOLUTION.sub(pack, cell)


def read_exercises(notebook: Mapping[str, Any], path: Path) -> dict[str, Exercise]:
    """Return the exercises that a notebook defines.

    Raises:
        ExerciseError: Two have one name, or one has no solution.
    """
    made: dict[str, Exercise] = {}
    for cell in list_code(notebook):
        head, _, body = cell.partition("\n")
        if head.startswith("%%exercise"):
            name = head.split()[1] if len(head.split()) > 1 else ""
            if name in made:
                raise ExerciseError(f"{path}: two exercises are called {name!r}")
            made[name] = read_cell(name, body)
    return made


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook.

    Raises:
        ExerciseError: The file has none.
    """
    try:
        notebook: Any = json.loads(path.read_text("utf-8"))
        is_one = all("source" in cell for cell in notebook["cells"])
    except (ValueError, TypeError, LookupError):
        is_one = False
    if not is_one:
        raise ExerciseError(f"{path} is no notebook")
    return dict(notebook)


def list_code(notebook: Mapping[str, Any]) -> Iterator[str]:
    """Yield the code cells of a notebook."""
    for cell in notebook["cells"]:
        if cell.get("cell_type") == "code":
            yield "".join(cell["source"])


def build(source: Path, out: Path) -> int:
    """Check a teacher's notebook, and write the learner's copy and otter's tests."""
    notebook = read_notebook(source)
    made = read_exercises(notebook, source)
    if not made:
        raise ExerciseError(f"{source} has no cell %%exercise NAME")
    for one in made.values():
        solved, started = grade_answer(one, one.solution), grade_answer(one, "pass")
        if solved.points < 1:
            raise ExerciseError(f"the solution of {one.name!r} fails: {solved.text}")
        if started.points == 1:
            raise ExerciseError(f"{one.name!r} is solved before it begins")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = hide_solution("".join(cell["source"])).splitlines(True)  # noqa: FBT003  keepends
            cell["outputs"], cell["execution_count"] = [], None
    (out / "tests").mkdir(parents=True, exist_ok=True)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    (out / source.name).write_text(f"{text}\n", "utf-8")
    for name in made:
        test = write_test(name)
        (out / "tests" / f"{name}.py").write_text(test, "utf-8")
    print(f"{out / source.name}: exercises: {len(made)}")  # noqa: T201  a command
    return 0


def write_test(name: str) -> str:
    """Return otter's test of an exercise, as the text of its file."""
    case = {"code": CODE.format(name=name), "hidden": False, "locked": False}
    suite = {"cases": [case], "scored": True, "setup": "", "teardown": ""}
    test = {"name": name, "points": 1, "suites": [{**suite, "type": "doctest"}]}
    return f"OK_FORMAT = True\n\ntest = {test!r}\n"


def grade_folder(folder: Path, source: Path) -> int:
    """Write a table of the grades of all notebooks in a folder.

    Only answers run, each in the sandbox of a child process.
    """
    made = read_exercises(read_notebook(source), source)
    if not folder.is_dir():
        raise ExerciseError(f"there is no folder {folder}")
    table = csv.writer(sys.stdout)
    table.writerow(["notebook", "exercise", "points", "text"])
    for path in sorted(folder.rglob("*.ipynb")):
        answers, missing = dict[str, str](), "no answer"
        try:
            cells = [*list_code(read_notebook(path))]
        except (ExerciseError, OSError):
            cells, missing = [], "it is no notebook"
        for cell in cells:
            found = ANSWER.match(cell)
            if found:
                answers[found[1]] = cell[found.end() :]
        for name, one in made.items():
            grade = Grade(0.0, missing)
            if name in answers:
                grade = grade_answer(one, answers[name])
            row = [path.relative_to(folder), name, grade.points, grade.text]
            table.writerow(row)
    return 0
