"""What a replay holds at once, and when it lets go of it."""

import pytest
import torch

from meta_magic import record
from meta_magic.errors import ReplayError
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.memory import Memory, make_view
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request
from tests.unit.replaying.replays import CPU, plan, storages_of


def test_the_peak_counts_what_is_alive_at_once():
    with record() as trace:
        x = torch.ones(100)
        for _ in range(5):
            x = x * 2
    # The old and the new tensor of 400 bytes, never three.
    assert plan(trace, x).peak_nbytes({}, can_split=True) == 800


def test_the_peak_counts_memory_for_draws_of_no_use():
    with record() as trace:
        other = torch.empty(1000).normal_()
        x = torch.empty(10).normal_()
    assert plan(trace, x).peak_nbytes({}, can_split=True) == 4000
    assert other.is_meta


def test_the_peak_counts_the_part_of_a_draw_that_is_there_at_once(monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.streams.MAX_DRAWN", 64)
    with record() as trace:
        torch.empty(1000).uniform_()
        x = torch.empty(10).normal_()
    made = plan(trace, x)
    assert made.peak_nbytes({}, can_split=True) == 256
    assert made.peak_nbytes({}, can_split=False) == 4000


def test_the_peak_counts_both_sides_of_a_cast():
    with record() as trace:
        x = torch.ones(100)
    (number,) = storages_of(trace, x)
    assert plan(trace, x).peak_nbytes({number: 200}, can_split=True) == 600


def test_what_is_finished_is_handed_over_before_the_end():
    with record() as trace:
        first = torch.ones(2) * 2
        second = torch.ones(3) * 3
    numbers = storages_of(trace, first, second)
    done = []
    steps = Execution(trace.program, Request(storages=frozenset(numbers)), CPU).run(
        lambda number, _: done.append(number)
    )
    seen = [list(done) for _ in steps]
    assert seen[-1] == numbers
    assert numbers[:1] in seen


def test_no_view_reaches_beyond_its_storage():
    storage = torch.zeros(2).untyped_storage()
    with record() as trace:
        torch.ones(3)
    (geometry,) = trace.ops[0].outputs
    with pytest.raises(ReplayError, match="tensor of shape"):
        make_view(storage, geometry)


def test_a_storage_without_memory_is_refused():
    storage = torch.empty(2, device="meta").untyped_storage()
    with record() as trace:
        x = torch.ones(2)
    (number,) = storages_of(trace, x)
    memory = Memory(ProgramCalls(trace.program), CPU)
    with pytest.raises(ReplayError, match="has no memory of its own"):
        memory.add(number, storage)
