"""Unit tests of ``trace/paused_collector.py``."""

import gc
import weakref

import pytest

from meta_magic.trace.table import paused_collector


class Circle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def enabled_collector():
    assert gc.isenabled()
    gc.unfreeze()  # what other tests left, see ``conftest``
    yield
    gc.freeze()
    gc.enable()


def test_no_garbage_is_looked_for_within():
    with paused_collector(ages=True):
        circle = weakref.ref(Circle())
        _ = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert circle() is not None
    gc.collect()
    assert circle() is None


def test_it_runs_again_after_an_error():
    with pytest.raises(ValueError, match="one"), paused_collector(ages=True):
        assert not gc.isenabled()
        raise ValueError("one")
    assert gc.isenabled()


def test_what_was_disabled_stays_so():
    gc.disable()
    with paused_collector(ages=True):
        pass
    assert not gc.isenabled()


def test_what_the_user_froze_stays_so():
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        with paused_collector(ages=True):
            pass
        assert gc.get_freeze_count() >= n_frozen > 0
    finally:
        gc.unfreeze()


def test_nothing_stays_frozen():
    with paused_collector(ages=True):
        pass
    assert gc.get_freeze_count() == 0
