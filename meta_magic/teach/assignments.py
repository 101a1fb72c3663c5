"""Notebooks with exercises: read their cells, build a learner's copy, grade answers.

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
secret. For a secret one, call ``mm.exercise`` in a hidden test of nbgrader. Read
:func:`read_cell` and :func:`build` first.
"""

import base64
import csv
import json
import re
import sys
import zlib
from ast import Assign, Name, Store, parse, walk
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from meta_magic.errors import ExerciseError
from meta_magic.teach.answer_runs import Exercise
from meta_magic.teach.exercises import Grade, grade_answer
from meta_magic.trials.blocks import ASSIGNMENTS

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
