"""Functions and types that are others while a recording runs."""

from types import SimpleNamespace

import pytest

from meta_magic.torch_private.replacing import Replacements

OTHERS = {"first": "other first", "second": "other second"}


@pytest.fixture
def home():
    return SimpleNamespace(first="first", second="second")


@pytest.fixture
def entered(home):
    replacements = [Replacements(), Replacements()]
    for one in replacements:
        one.replace_all(home, OTHERS)
    return replacements


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_replaced_by_two_is_there_again_when_both_ended(home, entered, order):
    before, after = entered[::order]
    before.restore()
    assert vars(home) == OTHERS
    after.restore()
    assert vars(home) == {"first": "first", "second": "second"}


def test_what_somebody_else_put_there_meanwhile_stays(home, entered):
    home.first = "mine"
    for one in entered:
        one.restore()
    assert vars(home) == {"first": "mine", "second": "second"}


def test_what_is_replaced_again_is_what_was_there_then(home, entered):
    for one in entered:
        one.restore()
    home.first = "later"
    entered[0].replace_all(home, OTHERS)
    entered[0].restore()
    assert home.first == "later"
