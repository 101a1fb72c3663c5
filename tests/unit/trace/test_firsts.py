"""Unit tests of ``trace/firsts.py``."""

import numpy as np

from meta_magic.trace.derived_facts import find_firsts


def test_each_number_has_the_first_index_at_which_it_stands():
    numbers = np.array([2, 0, 2, 0, 4])
    assert find_firsts(numbers, 5).tolist() == [1, -1, 0, -1, 4]


def test_of_no_numbers_none_stands_anywhere():
    assert find_firsts(np.array([], np.int64), 2).tolist() == [-1, -1]
