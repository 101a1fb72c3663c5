"""Exercises: what a definition needs, and how answers are graded."""

import io
import sys

import pytest
import torch

import meta_magic
from meta_magic.errors import ExerciseError
from meta_magic.teach import answer_runs, exercises
from meta_magic.teach.answer_runs import Exercise
from meta_magic.teach.exercises import exercise, grade, grade_answer

GIVEN = "N, M = 3, 4\na, b = torch.arange(N), torch.arange(M)"


@pytest.fixture(autouse=True)
def no_exercises(monkeypatch):
    """Each test defines its own."""
    monkeypatch.setattr(exercises, "exercises", {})
    monkeypatch.setattr(exercises, "grades", {})
    monkeypatch.setattr(exercises, "answers", {})


@pytest.fixture
def outer():
    exercise(
        "outer",
        GIVEN,
        "x = a[:, None] + b",
        ["x"],
        [{"N": 5, "M": 2}],
        hints=["one", "two"],
    )
    return exercises.exercises["outer"]


@pytest.mark.parametrize(
    ("answer", "points", "text"),
    [
        ("x = a.unsqueeze(1) + b", 1, "right"),
        ("x = torch.arange(3)[:, None] + torch.arange(4)", 0.5, "with N=5, M=2"),
        ("x = (a[:, None] + b).float()", 0.75, "torch.float32"),
        ("x = a[:, None] * b", 0.25, "other numbers"),
        ("x = [1, 2]", 0, "list, and no tensor"),
        ("y = 1", 0, "there is no x"),
        ("x = (", 0, "no Python"),
        ("exit()", 0, "SystemExit"),
        ("del torch; x = a + c", 0, "name 'c' is not defined"),
        ("import sys; print('!', file=sys.stderr); x = a[:, None] + b", 1, "right"),
        ("open('left.txt', 'w')", 0, "writes the file"),
        ("import os; os._exit(0)", 0, "did not end"),
    ],
)
def test_an_answer_gets_its_points_and_a_reason(outer, answer, points, text):
    found = grade_answer(outer, answer)
    assert found.points == points
    assert text in found.text


EVIL = """
import os, pickle, sys
class Evil:
    def __reduce__(self):
        return exec, ("import meta_magic; meta_magic.is_broken = True",)
frame = sys._getframe()
while "writer" not in frame.f_locals:
    frame = frame.f_back
os.write(frame.f_locals["writer"], pickle.dumps(Evil()))
"""
"""Writes into the child's pipe what would run code in the process that reads it."""

STALL = EVIL.replace("pickle.dumps(Evil())", "b'x'") + "import time; time.sleep(1e6)"

LIAR = """
class Liar(torch.Tensor):
    shape = property(lambda self: torch.Size([3, 4]))
x = torch.ones(12).as_subclass(Liar)
"""
EQUAL = "class Equal(int):\n    __eq__ = lambda *_: True\nx = Equal()"


@pytest.mark.parametrize(
    ("answer", "points", "text"),
    [
        (
            "torch.allclose = torch.equal = torch.isclose = lambda *_: True\nx = a",
            0,
            "3",
        ),
        (EQUAL, 0, "Equal, and no tensor"),
        (LIAR, 0, "x is (12,)"),
        ("print('x' * 10**7); x = a[:, None] + b", 1, "right"),
        ("import sys; sys.stdout.close(); x = a[:, None] + b", 1, "right"),
        ("import os; os.fork()", 0, "starts a process"),
        ("import resource as r; r.setrlimit(r.RLIMIT_CPU, (9, 9))", 0, "its limits"),
        (f"{EVIL}os._exit(0)", 0, "did not end"),
        (f"{EVIL}x = 1", 0, ""),
        ("raise type('E', (Exception,), {'__str__': 1})()", 0, "E"),
        ("raise ValueError('x' * 10**6)", 0, "xxx…"),
        ("x = []\nx.append(x)", 0, "RecursionError"),
        ("x = " + "(" * 10_000, 0, "no Python"),
        ("x = " + "-" * 100_000 + "1", 0, ""),
        ("x = '\\d'", 0, "str, and no tensor"),
        ("raise ValueError('\\ud800')", 0, "?"),
        ("x = 10 ** 5000", 0, "int, and no tensor"),
        (5, 0, "TypeError"),
    ],
)
def test_no_answer_harms_who_grades_it(outer, capsys, answer, points, text):
    assert grade("outer", answer) == points
    said = capsys.readouterr()
    assert text in exercises.grades["outer"][-1].text
    assert len(said.out) < 1_000
    assert said.err == ""
    assert not hasattr(meta_magic, "is_broken")


def test_a_grade_of_what_cannot_be_a_name_is_none(outer, capsys):
    assert grade(["outer"]) == grade(None) == 0
    assert "there is no exercise None" in capsys.readouterr().out


def test_the_exercise_that_is_meant_is_named(outer, capsys):
    assert grade("outre") == 0
    text = "there is no exercise 'outre'; there are: outer; did you mean 'outer'?"
    assert text in capsys.readouterr().out


def test_a_long_number_and_a_wrong_output_are_no_error(monkeypatch):
    exercise("n", "", "n = 3", ["n"])
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    assert grade("n", "n = 10 ** 5000") == grade("n", "n = 'é'") == 0


@pytest.mark.parametrize(
    ("given", "answer"), [("n = 8 * 16", "128"), ("n = (2, 3,)", "torch.Size([2, 3])")]
)
def test_a_number_and_a_shape_are_right_in_any_form(given, answer):
    assert grade_answer(define(given, "", ["n"]), f"n = {answer}").points == 1


@pytest.mark.parametrize(
    "answer",
    [
        "while True: pass",
        "import time; time.sleep(1e6)",
        STALL,
    ],
)
def test_an_answer_that_never_ends_is_refused(outer, monkeypatch, answer):
    monkeypatch.setattr(answer_runs, "SECONDS", 1.0)
    found = grade_answer(outer, answer)
    assert (found.points, found.has_ended) == (0, False)


def test_a_view_may_be_asked_for():
    given = "x = torch.arange(6)"
    exercise("evens", given, "y = x[::2]", ["y"], view=True)
    exercise("copied", given, "y = x[::2].clone()", ["y"], view=False)
    assert grade("evens", "y = x[torch.tensor([0, 2, 4])]") == 0.75
    assert grade("copied", "y = x[::2]") == 0.75


def test_hints_come_one_after_each_wrong_answer(outer, capsys):
    for said in ("hint: one", "hint: two"):
        grade("outer", "x = a + b[:, None]")
        assert said in capsys.readouterr().out
    grade("outer", "x = a + b[:, None]")
    assert "hint" not in capsys.readouterr().out


def test_a_grade_is_a_number_and_nothing_goes_to_stderr(outer, capsys):
    assert grade("outer") == 0
    assert "no answer yet" in capsys.readouterr().out
    assert grade("nowhere") == 0
    assert "there are: outer" in capsys.readouterr().out
    assert (
        grade("outer", "import warnings; warnings.warn('w'); x = a[:, None] + b") == 1
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("solution", "wants", "text"),
    [
        ("", ["x"], "no solution"),
        ("x = a[:, None] + b", [], "which names it wants"),
        ("x = a + b", ["x"], "is refused"),
        ("y = a", ["x"], "makes no x"),
    ],
)
def test_a_definition_is_checked(solution, wants, text):
    with pytest.raises(ExerciseError, match=text):
        exercise("outer", GIVEN, solution, wants)


def test_an_answer_may_not_be_what_was_given():
    exercise("same", "x = torch.arange(3)", "x = x * 2", ["x"])
    assert grade("same", "pass") == 0


def test_the_solution_is_run_for_real_and_the_values_count():
    exercise("sorted", "x = torch.tensor([3.0, 1.0, 2.0])", "y = x.sort()[0]", ["y"])
    assert grade("sorted", "y = x") < 1
    assert grade("sorted", "y = x[torch.tensor([1, 2, 0])]") == 1
    assert torch.is_grad_enabled()


def define(solution, given="x = torch.arange(6.)", wants=("x",)):
    return Exercise("one", given, solution, wants)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("x += 1", "x += 1"),
        ("x += 1", "x = x + 1"),
        ("x = x + 1", "x.add_(1)"),
        ("x = x.split(2)", "x = x[:2], x[2:4], x[4:]"),
    ],
)
def test_an_answer_in_place_and_one_of_several_tensors_are_right(solution, answer):
    assert grade_answer(define(solution), answer).points == 1


@pytest.mark.parametrize(
    ("solution", "answer", "said"),
    [
        ("x = x + 1", "pass", "there is no x"),
        ("x = x.split(2)", "x = x.split(3)", "x has 2 parts, and 3 are wanted"),
        ("x = x.split(2)", "x = x[:2], x[2:4], x[:2]", "x[2] has the right shape"),
        ("x = x * (1 + 1j)", "x = x.clone()", "other numbers"),
        ("x = x + 1", "x = x.to('meta')", "torch.strided on meta"),
        ("x = x.nope()", "x = x", "the solution fails: AttributeError"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(solution, answer, said):
    found = grade_answer(define(solution), answer)
    assert found.points <= 0.25
    assert said in found.text


def test_a_refusal_that_an_answer_catches_is_said(tmp_path):
    path = str(tmp_path / "out")
    answer = (
        f"try:\n    open({path!r}, 'w')\nexcept BaseException:\n    pass\nx = x + 1"
    )
    found = grade_answer(define("x = x + 1"), answer)
    assert (found.points, found.has_ended) == (0, False)
    assert "which an answer may not do" in found.text
