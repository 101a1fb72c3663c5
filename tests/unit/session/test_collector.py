"""How often Python's collector looks while a recording runs."""

import gc
from threading import Event, Thread

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


def test_recordings_of_threads_that_end_in_another_order_leave_what_was_before():
    gc.set_threshold(700, 11, 12)
    is_first_in, is_second_in, is_first_out = Event(), Event(), Event()

    def run_first():
        with record():
            is_first_in.set()
            is_second_in.wait()
        is_first_out.set()

    def run_second():
        is_first_in.wait()
        with record():
            is_second_in.set()
            is_first_out.wait()
            within.append(gc.get_threshold())

    within = []
    threads = [Thread(target=run_first), Thread(target=run_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert within == [(2100, 11, 120)]
    assert gc.get_threshold() == (700, 11, 12)


def test_thresholds_as_large_as_they_can_be_are_no_failure():
    gc.set_threshold(2**31 - 1, 10, 2**31 - 1)
    with record():
        pass
    assert gc.get_threshold() == (2**31 - 1, 10, 2**31 - 1)
