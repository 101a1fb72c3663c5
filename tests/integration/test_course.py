"""The course of notebook 5: each exercise solved in two ways, and answered wrongly."""

import json
from pathlib import Path

import pytest

from meta_magic.teach.exercises import grade_answer, read_exercises
from tests.integration.course_answers import ANSWERS

COURSE = Path(__file__).parents[2] / "notebooks" / "05-shapes.ipynb"
EXERCISES = read_exercises(json.loads(COURSE.read_text("utf-8")), COURSE)
WRONG = [
    pytest.param(name, *one, marks=pytest.mark.sweep if i else ())
    for name, (_, wrong) in ANSWERS.items()
    for i, one in enumerate(wrong)
]
"""One of each exercise; the others run with ``-m sweep``."""


def test_the_course_has_twenty_exercises_in_nine_parts():
    parts = [line for line in COURSE.read_text("utf-8").split('"') if "## " in line]
    assert list(EXERCISES) == list(ANSWERS)
    assert len(EXERCISES) == 20
    assert len([part for part in parts if part[3:4].isdigit()]) == 9
    assert len(WRONG) == 100


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_another_right_answer_are_accepted(name):
    made = EXERCISES[name]
    for answer in (made.solution, ANSWERS[name][0]):
        assert grade_answer(made, answer).points == 1


@pytest.mark.parametrize(("name", "answer", "said"), WRONG)
def test_a_wrong_answer_is_refused_and_said_why(name, answer, said):
    found = grade_answer(EXERCISES[name], answer)
    assert found.points < 1
    assert said in found.text
    right = EXERCISES[name].solution.split(" = ", 1)[1].strip()
    texts = (found.text.replace(answer[4:], ""), *EXERCISES[name].hints)
    assert not any(right in text for text in texts)
