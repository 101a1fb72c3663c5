"""A shell with modes to leave open."""

import pytest

from tests.integration.session.torch_states import CountOps, WatchCalls


@pytest.fixture
def shell(shell):
    shell.user_ns.update(CountOps=CountOps, WatchCalls=WatchCalls)
    return shell
