"""Answers of the report: values beside the CPU's, and where sizes come from."""

import gc
import math
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.recording.identities.storages import MAX_COPIED_NBYTES
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.view.answers import (
    FORGOTTEN,
    answer_why,
    answers_of,
    describe_values,
    values_of,
)
from tests.unit.view.panels import TIMEOUT


def find_slot(trace, op, slot=0):
    return next(call.index for call in trace.ops if call.op == op), slot


def build():
    torch.manual_seed(0)
    return nn.Linear(40, 30)


def test_values_are_those_of_a_real_run():
    with record() as trace:
        model = build()
    expected = build().weight.detach().double()
    found = describe_values(trace.program, *find_slot(trace, "aten.uniform_.default"))
    facts = dict(found["facts"])
    assert model.weight.is_meta
    assert facts["min"] == f"{expected.min().item():.4g}"
    assert facts["max"] == f"{expected.max().item():.4g}"
    assert facts["std"] == f"{expected.std(correction=0).item():.4g}"
    assert found["first"].startswith(f"{expected[0, 0].item():.4g}, ")
    counts = torch.histc(expected, 30).int().tolist()
    assert found["bins"]["counts"] == counts


def test_zeros_and_what_is_no_number_are_counted():
    with record() as trace:
        x = torch.zeros(8)
        x[0], x[1], x[2] = math.inf, math.nan, 2
    found = describe_values(trace.program, *find_slot(trace, "aten.zeros.default"))
    facts = dict(found["facts"])
    # five of the six that are finite
    assert (facts["zeros"], facts["inf"], facts["nan"]) == ("83.3%", "1", "1")


def test_what_lies_in_memory_otherwise_is_refused():
    with record() as trace:
        torch.eye(3).to_sparse()
    found = describe_values(trace.program, len(trace.ops) - 1, 1)
    assert found == {"error": "its layout is torch.sparse_coo"}


def test_what_nobody_wrote_is_said_to_be_unknown():
    with record() as trace:
        torch.empty(4)
    assert "nothing was written to it" in describe_values(trace.program, 0, 0)["error"]


@pytest.fixture
def ask():
    """Ask for values, and wait for the answer."""

    def wait(values, **asked):
        done, answers = threading.Event(), []
        values.answer(asked, lambda found: (answers.append(found), done.set()))
        assert done.wait(TIMEOUT)
        return answers[0]

    return wait


def test_a_recording_with_tensors_of_the_user_is_not_kept(ask):
    large = torch.ones(MAX_COPIED_NBYTES // 4 + 1)
    with record() as trace:
        large[:3].clone()
    op = len(trace.ops) - 1
    program = replace(trace.program)  # the last one is always kept
    values = values_of(program)
    assert ask(values, id=0, op=op, slot=0)["first"] == "1, 1, 1"
    del program
    gc.collect()
    assert ask(values, id=0, op=op, slot=0)["error"] == FORGOTTEN


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
    found = answer_why(trace, {"op": op, "slot": 1, "dim": 1})
    assert found == answer_why(trace, {"op": op, "slot": 1, "dim": 1})
    values = [(step["depth"], step["value"]) for step in found["steps"]]
    assert values[0] == (0, 15)
    assert sorted(values[1:]) == [(1, 3), (1, 5)]


def test_what_cannot_be_answered_is_said(tmp_path):
    path = tmp_path / "written.txt"
    with record() as trace:
        path.write_text(str(torch.ones(batch).shape))
    found = ask_all(trace, {"kind": "why", "id": 0, "op": 0, "slot": 0, "dim": 0})
    assert found["error"].startswith("it writes the file")


def ask_all(trace, asked):
    """Ask all that answer questions on a trace; the one answer."""
    done, found = threading.Event(), []
    for answers in answers_of(trace):
        answers.receive(asked, lambda answer: (found.append(answer), done.set()))
    assert done.wait(TIMEOUT)
    (answer,) = found
    assert (answer["kind"], answer["id"]) == (asked["kind"], asked["id"])
    return answer


def test_a_question_is_answered_in_a_thread_under_its_number(trace):
    asked = {"kind": "why", "id": 3, "op": 0, "slot": 0, "dim": 2}
    assert ask_all(trace, asked)["steps"][0]["value"] == 5


def test_the_sizes_that_run_are_told_in_words():
    with record() as trace:
        side = 28
        torch.ones(2, side).view(2, side // 7, 7)
    found = ask_all(trace, {"kind": "check", "id": 0, "name": "side"})
    assert found["text"].startswith("side must be a multiple of 7; with side=29, line ")
    found = ask_all(trace, {"kind": "check", "id": 1, "name": "sides"})
    assert "sides" in found["error"]


def test_no_answer_is_worked_out_while_something_is_recorded(trace):
    done = threading.Event()
    _, whys, *_ = answers_of(trace)
    with RARE_COLLECTION:
        whys.answer({"id": 0, "op": 0, "slot": 0, "dim": 0}, lambda _: done.set())
        assert not done.wait(0.3)
    assert done.wait(TIMEOUT)
