"""The note on an error of ``with record()``: asked for when it is printed."""

import pickle
import traceback

import pytest
import torch

from meta_magic import record
from meta_magic.explain import explanations


def fail(run):
    """Return the error of a function that is recorded."""
    with pytest.raises(Exception) as raised, record():  # noqa: PT011  any
        run()
    return raised.value


def multiply():
    return torch.ones(2, 3) @ torch.ones(2, 3)


def test_the_explanation_stands_below_the_traceback():
    text = "".join(traceback.format_exception(fail(multiply)))
    _, _, below = text.partition("RuntimeError: mat1 and mat2")
    assert "dimension 1 of torch.ones(2, 3) (3) must equal" in below


def test_nothing_is_explained_that_nobody_reads(monkeypatch):
    asked = []
    monkeypatch.setattr(explanations, "explain", asked.append)
    error = fail(multiply)
    assert str(error).startswith("mat1 and mat2 shapes")
    assert asked == []
    traceback.format_exception(error)
    assert len(asked) == 1


def test_errors_without_torch_have_no_note():
    assert not hasattr(fail(lambda: {}["x"]), "__notes__")


def test_an_error_within_two_recordings_has_one_note():
    def run():
        with record():
            multiply()

    assert len(fail(run).__notes__) == 1


def test_an_error_that_is_sent_away_takes_plain_text_along():
    error = fail(multiply)
    note = pickle.loads(pickle.dumps(error)).__notes__[0]
    assert type(note) is str
    assert "trace.explanation" in note
