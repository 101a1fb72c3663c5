"""What the Materialize panel says before, during and after."""

import pytest

from meta_magic.view import choices
from meta_magic.view.choices import TimeLeft, describe_end


def test_the_end_says_what_to_type():
    assert describe_end("layers[0]", "Linear", "cpu") == (
        "`layers[0]` is now real, on cpu: call `layers[0](…)` in the next cell"
    )


def test_the_end_of_what_has_no_name_says_what_it_is():
    assert describe_end("", "Linear", "cpu") == "the Linear is now real, on cpu"


@pytest.fixture
def clock(monkeypatch):
    """A time that a test sets."""
    now = [100.0]
    monkeypatch.setattr(choices.time, "monotonic", lambda: now[0])
    return now


def test_the_time_that_is_left_is_that_of_the_rest(clock):
    left = TimeLeft()
    clock[0] += 10
    assert left.describe(0.25) == "about 30 s left"


def test_at_first_there_is_no_time(clock):
    left = TimeLeft()
    assert left.describe(0.0) == ""
    clock[0] += 0.5
    assert left.describe(0.1) == ""


def test_the_time_that_is_left_does_not_jump(clock):
    left = TimeLeft()
    clock[0] += 10
    left.describe(0.5)
    clock[0] += 10
    # Half done after 10 s and after 20 s: 20 s in all are now 3/4 * 20 + 1/4 * 40.
    assert left.describe(0.5) == "about 5 s left"
