"""Unit tests of ``view/wire.py``: columns of numbers, each beside a plain loop."""

from itertools import groupby

import numpy as np
import pytest

from meta_magic.view.wire import Table, as_deltas, as_differences, count_runs

COLUMNS = ([], [0], [3], [0, 1, 2, 0, 5, 5, 1], [7, 7, 2, 2, 2, 9], [0, 0, 0])


def lag(numbers):
    n_met = 0
    for number in numbers:
        yield n_met - number
        n_met = max(n_met, number + 1)


@pytest.mark.parametrize("kind", [np.int64, np.uint32])
@pytest.mark.parametrize("numbers", COLUMNS)
def test_a_delta_is_how_far_a_number_lies_below_the_first_not_met(numbers, kind):
    assert as_deltas(np.array(numbers, kind)) == [*lag(numbers)]


@pytest.mark.parametrize("kind", [np.int64, np.uint32])
@pytest.mark.parametrize("numbers", COLUMNS)
def test_differences_add_up_to_the_numbers(numbers, kind):
    differences = as_differences(np.array(numbers, kind))
    assert [sum(differences[: i + 1]) for i in range(len(numbers))] == numbers


@pytest.mark.parametrize("numbers", COLUMNS)
def test_runs_are_what_stands_in_a_row(numbers):
    assert count_runs(numbers) == [len([*run]) for _, run in groupby(numbers)]


def test_what_is_sent_are_pythons_own_numbers():
    numbers = np.array([3, 3, 1])
    columns = (as_deltas(numbers), as_differences(numbers), count_runs(numbers))
    assert {type(n) for column in columns for n in column} == {int}


def test_items_of_a_table_are_numbered_by_first_sight():
    one_by_one, at_once = Table(str), Table(str)
    items, numbers = ("a", "b", "c", "a"), [2, -1, 0, 2, 3, -1]
    expected = [-1 if n < 0 else one_by_one.of(items[n]) for n in numbers]
    assert at_once.all_of(items, np.array(numbers)) == expected == [0, -1, 1, 0, 1, -1]
    assert at_once.rows == one_by_one.rows == ["c", "a"]


def test_a_table_of_no_items_numbers_none():
    assert Table(str).all_of((), np.array([-1, -1])) == [-1, -1]
