"""A fixture for tests of cache hits."""

import pytest

from meta_magic.recording.intercept.kernel_calls import KernelCalls
from meta_magic.session.recording import shared_cache_by_device


@pytest.fixture
def ran(monkeypatch):
    """The operators whose kernels ran, where none is known before."""
    shared_cache_by_device.clear()
    names = []
    run = KernelCalls.call

    def note(self, call):
        names.append(call.table.name)
        return run(self, call)

    monkeypatch.setattr(KernelCalls, "call", note)
    return names
