"""What a report answers when it is asked why a size is what it is."""

import threading

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.view.answers import answer_why, answers_of
from tests.unit.view.panels import TIMEOUT

batch = 6


@pytest.fixture
def trace():
    with record() as trace:
        x = torch.ones(batch, 3, 5)
        x.flatten(1)
    return trace


def find_op(trace, name):
    return next(call.index for call in trace.ops if name in call.op)


def test_the_answer_is_the_chain_of_the_dimension(trace):
    op = find_op(trace, "view")  # slot 0 is what it reads
    told = answer_why(trace, {"op": op, "slot": 1, "dim": 1})
    assert told == answer_why(trace, {"op": op, "slot": 1, "dim": 1})
    values = [(step["depth"], step["value"]) for step in told["steps"]]
    assert values[0] == (0, 15)
    assert sorted(values[1:]) == [(1, 3), (1, 5)]


def test_what_cannot_be_answered_is_told_in_words(tmp_path):
    path = tmp_path / "written.txt"
    with record() as trace:
        path.write_text(str(torch.ones(batch).shape))
    told = answer_why(trace, {"op": 0, "slot": 0, "dim": 0})
    assert [*told] == ["error"]
    assert "it writes the file" in told["error"]


def test_a_question_is_answered_in_a_thread_under_its_number(trace):
    done, told = threading.Event(), []
    asked = {"kind": "why", "id": 3, "op": 0, "slot": 0, "dim": 2}
    for answers in answers_of(trace):
        answers.receive(asked, lambda answer: (told.append(answer), done.set()))
    assert done.wait(TIMEOUT)
    (answer,) = told
    assert (answer["kind"], answer["id"]) == ("why", 3)
    assert answer["steps"][0]["value"] == 5


def test_no_answer_is_worked_out_while_something_is_recorded(trace):
    done = threading.Event()
    _, whys = answers_of(trace)
    with RARE_COLLECTION:
        whys.answer({"id": 0, "op": 0, "slot": 0, "dim": 0}, lambda _: done.set())
        assert not done.wait(0.3)
    assert done.wait(TIMEOUT)


def test_a_size_that_is_no_more_is_told_in_words(trace):
    done, told = threading.Event(), []
    _, whys = answers_of(trace)
    whys.answer(
        {"id": 0, "op": 0, "slot": 0, "dim": 9},
        lambda answer: (told.append(answer), done.set()),
    )
    assert done.wait(TIMEOUT)
    assert "IndexError" in told[0]["error"]


def test_a_module_is_asked_for_as_any_tensor():
    with record() as trace:
        layer = nn.Linear(batch, 2)
    assert layer.weight.is_meta
    told = answer_why(trace, {"op": 0, "slot": 0, "dim": 1})
    assert told["steps"][0]["value"] == batch
