"""Notebooks with exercises: cells, what is built for learners, a table of grades."""

import csv
import json

import pytest

from meta_magic.check.commands import main
from meta_magic.errors import ExerciseError
from meta_magic.teach.exercises import hide_solution, read_cell

CELL = """N, M = 3, 4
a, b = torch.arange(N), torch.arange(M)
# sizes: N=5, M=2
# hint: a column
### BEGIN SOLUTION
x = a[:, None] + b
### END SOLUTION
"""


def write_notebook(path, *cells):
    made = [{"cell_type": "code", "source": cell, "metadata": {}} for cell in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": made, "nbformat": 4}), "utf-8")
    return str(path)


def test_a_cell_says_all_of_an_exercise():
    made = read_cell("outer", CELL)
    assert made.given.startswith("N, M = 3, 4\na, b")
    assert "SOLUTION" not in made.given
    assert (made.solution, made.wants) == ("x = a[:, None] + b\n", ("x",))
    assert (made.sizes, made.hints) == (({"N": 5, "M": 2},), ("a column",))


def test_a_hidden_solution_is_the_same_exercise():
    hidden = hide_solution(CELL)
    assert "a[:, None]" not in hidden
    assert read_cell("outer", hidden) == read_cell("outer", CELL)


def test_a_cell_without_a_solution_is_refused():
    with pytest.raises(ExerciseError, match="no solution between its marks"):
        read_cell("outer", "a = 1")


def test_a_class_is_built_and_graded(tmp_path, capsys):
    source = write_notebook(tmp_path / "course.ipynb", f"%%exercise outer\n{CELL}")
    assert main(["class", "build", source, "-o", str(tmp_path / "out")]) == 0
    built = (tmp_path / "out" / "course.ipynb").read_text("utf-8")
    assert "a[:, None]" not in built
    names = {}
    exec((tmp_path / "out/tests/outer.py").read_text("utf-8"), names)
    assert "grade('outer')" in names["test"]["suites"][0]["cases"][0]["code"]
    answers = {"ann": "x = a[:, None] + b", "bob": "x = a + b[:, None]"}
    for name, answer in answers.items():
        path = tmp_path / "in" / name / "course.ipynb"
        write_notebook(path, f"%%meta --exercise outer\n{answer}")
    write_notebook(tmp_path / "in" / "eve" / "course.ipynb", "pass")
    (tmp_path / "in" / "fay.ipynb").write_text("{", "utf-8")
    quoted = "\n%%meta -q --exercise='outer'\nx = a[:, None] + b"
    write_notebook(tmp_path / "in" / "gil.ipynb", quoted)
    capsys.readouterr()
    assert main(["class", "grade", str(tmp_path / "in"), "--notebook", source]) == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    assert [row["points"] for row in rows] == ["1.0", "0.0", "0.0", "0.0", "1.0"]
    assert "their order is not" in rows[1]["text"]
    assert [row["text"] for row in rows[2:4]] == ["no answer", "it is no notebook"]


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("../outer", "", "", "'../outer' is no name of an exercise"),
        ("", "", "", "'' is no name of an exercise"),
        ("outer", "sizes: N=5", "sizes: Q=5", "Q=5, M=2' names no number of the given"),
        ("outer", "sizes: N=5, M=2", "sizes: five", "five' names no number"),
        ("outer", "# hint", "# view: maybe\n# hint", "maybe' is neither yes nor no"),
        ("outer", "x = ", "", "the solution of 'outer' gives no name to a result"),
        ("outer", "None] + b", "None", "the solution of 'outer' is no Python"),
    ],
)
def test_what_an_exercise_may_not_say_is_refused(name, old, new, said):
    with pytest.raises(ExerciseError) as refused:
        read_cell(name, CELL.replace(old, new, 1))
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["hello", "[]", '{"cells": [1]}', '{"cells": []}'])
def test_a_file_without_exercises_is_refused(tmp_path, capsys, text):
    path = tmp_path / "a.ipynb"
    path.write_text(text, "utf-8")
    assert main(["class", "build", str(path), "-o", str(tmp_path)]) == 2
    said = "no cell %%exercise" if "[]}" in text else "is no notebook"
    assert f"{path} " in (error := capsys.readouterr().err)
    assert said in error


def test_what_cannot_be_built_is_said(tmp_path, capsys):
    twice = write_notebook(tmp_path / "a.ipynb", *2 * [f"%%exercise outer\n{CELL}"])
    assert main(["class", "build", twice, "-o", str(tmp_path)]) == 2
    assert "two exercises are called 'outer'" in capsys.readouterr().err
    broken = write_notebook(
        tmp_path / "b.ipynb", f"%%exercise outer\n{CELL.replace('[:, None]', '')}"
    )
    assert main(["class", "build", broken, "-o", str(tmp_path)]) == 2
    assert "the solution of 'outer' fails" in capsys.readouterr().err
    assert main(["class", "build", str(tmp_path / "no.ipynb"), "-o", "x"]) == 2
