"""How often Python's collector looks while a recording runs."""

import gc

import pytest

from meta_magic.session.record import record


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_it_looks_after_three_objects_for_one_and_seldom_at_all():
    gc.set_threshold(700, 11, 12)
    with record():
        within = gc.get_threshold()
    assert within == (2100, 11, 120)
    assert gc.get_threshold() == (700, 11, 12)


def test_what_the_block_sets_stays():
    with record():
        gc.set_threshold(5, 6, 7)
    assert gc.get_threshold() == (5, 6, 7)


def test_a_collector_that_is_off_stays_off():
    gc.set_threshold(0)
    with record():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0
