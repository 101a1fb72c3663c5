"""What ``record()`` hands out stands for its trace, before and after the end."""

import copy
import dataclasses
import pickle

import pytest
import torch

from meta_magic import Trace, UnfinishedTraceError, record


@pytest.fixture
def handle():
    with record() as handle:
        torch.ones(2, 3).sum()
    return handle


@pytest.mark.parametrize("question", ["ops", "notes", "summary", "program"])
def test_before_the_end_a_question_is_an_error_that_names_it(question):
    message = rf"trace\.{question} is known"
    with record() as handle, pytest.raises(UnfinishedTraceError, match=message):
        getattr(handle, question)


@pytest.mark.parametrize("ask", [len, str, pickle.dumps, hash])
def test_before_the_end_it_is_no_value(ask):
    with record() as handle, pytest.raises(UnfinishedTraceError):
        ask(handle)


def test_before_the_end_it_can_be_printed_by_a_debugger():
    with record() as handle:
        assert repr(handle) == "<Trace: recording>"
        assert handle == handle  # noqa: PLR0124
        assert handle != 1
        assert not hasattr(handle, "_repr_html_")


def test_it_is_a_trace_to_whoever_asks(handle):
    assert isinstance(handle, Trace)
    assert repr(handle) == "<Trace: 2 operators, 0 module trees>"
    assert str(handle) == handle.summary()
    assert set(dir(handle)) >= {"ops", "to_pandas", "show"}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_trace_itself(handle, copied):
    made = copied(handle)
    assert type(made) is Trace
    assert made == handle
    assert handle == made


def test_what_is_pickled_is_the_trace(handle):
    again = pickle.loads(pickle.dumps(handle))
    assert type(again) is Trace
    assert again == handle


def test_two_equal_recordings_are_equal_and_others_are_not(handle):
    with record() as other:
        torch.ones(2, 3).mean()
    assert handle == handle  # noqa: PLR0124
    assert handle != other
    assert handle != 1


def test_functions_of_dataclasses_take_it_for_one(handle):
    assert dataclasses.is_dataclass(handle)
    assert dataclasses.replace(handle, error="none").error == "none"
    assert dataclasses.fields(handle)[0].name == "program"


def test_a_trace_cannot_be_changed(handle):
    with pytest.raises(AttributeError):
        handle.error = "none"
    with pytest.raises(AttributeError):
        copy.copy(handle).error = "none"
