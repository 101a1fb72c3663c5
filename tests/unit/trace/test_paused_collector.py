"""Unit tests of ``trace/paused_collector.py``."""

import gc

import pytest

from meta_magic.trace.table import paused_collector


@pytest.fixture(autouse=True)
def enabled_collector():
    assert gc.isenabled()
    gc.unfreeze()  # what other tests left, see ``conftest``
    yield
    gc.freeze()
    gc.enable()


def test_what_the_user_froze_stays_so():
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        with paused_collector(ages=True):
            pass
        assert gc.get_freeze_count() >= n_frozen > 0
    finally:
        gc.unfreeze()
