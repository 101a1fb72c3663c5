"""The few calls that decide how a peak grows, beside all of them and recordings."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.cost.memory_timeline import take_sample
from meta_magic.trials.fit import Recordings, find_fitting
from meta_magic.view.fits_of_sizes import find_growth, find_stretches

ROOM = 16 * 10**9
SIZES = (1, 2, 9, 64, 777, 100_003)


def train(batch, width, layers=3):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(batch, width)).relu().sum().backward()
    optimizer.step()


def record_training(batch=8, width=64):
    with record() as trace:
        train(batch, width)
    return trace


@pytest.mark.parametrize("name", ["batch", "width"])
def test_the_highest_calls_are_as_high_as_all(name):
    recordings = Recordings(record_training())
    found = find_fitting(recordings, name, ROOM).interpolation
    calls = found.list_highest(1)
    assert len(calls) < len(found.live[0]) / 4
    for size in SIZES:
        live = found.live_nbytes(size)
        assert max(live[call] for call in calls) == max(live)


def test_a_growth_has_them_at_the_recorded_sizes():
    growth = find_growth(Recordings(record_training()), "batch", ROOM)
    peaks = [max(at) for at in zip(*growth.highest, strict=True)]
    by_size = dict(growth.recorded)
    assert peaks == [by_size[size] for size in growth.sizes]
    assert by_size[8] == take_sample(record_training()).peak_nbytes
    largest = take_sample(record_training(batch=growth.largest)).peak_nbytes
    assert by_size[growth.largest] == largest <= ROOM


def test_where_the_recorded_size_runs_another_program_there_are_none():
    batch = 1
    with record() as trace:
        rows = torch.ones(batch, 10)
        if batch > 1:
            rows = rows + 1
    recordings = Recordings(trace)
    growth = find_growth(recordings, "batch", ROOM)
    assert growth.sizes == (2, 3, 4)
    assert find_stretches(recordings, growth) == ()


def test_where_programs_differ_there_are_recordings_alone():
    batch = 4
    with record() as trace:
        rows = torch.ones(batch, 10**8)
        if (batch // 4) % 2:
            rows = rows + 1
    recordings = Recordings(trace)
    growth = find_growth(recordings, "batch", ROOM)
    assert (growth.sizes, growth.highest) == ((), ())
    assert dict(growth.recorded)[4] == 2 * 4 * 4 * 10**8
    assert find_stretches(recordings, growth) == ()
