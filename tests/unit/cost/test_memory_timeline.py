"""Bytes after each operator call, by device and by purpose."""

import pickle

import pytest
import torch
from torch import nn

from meta_magic.session.record import record


def test_bytes_are_those_alive_after_each_operator():
    with record() as trace:
        x = torch.ones(100)  # 400 bytes
        y = x + 1
        del x
        z = y[:50] * 2
    assert trace.memory.live_nbytes == (400, 800, 400, 600)
    assert (trace.memory.peak_nbytes, trace.memory.peak_index) == (800, 1)
    assert len(z) == 50


def test_a_view_takes_no_bytes():
    with record() as trace:
        torch.ones(4)[None].expand(1000, 4)
    assert trace.memory.peak_nbytes == 16


def test_of_a_call_that_raises_there_is_what_was_alive():
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(3) @ torch.ones(4)
    assert trace.memory.live_nbytes == (12, 28, 28)
    assert len(trace.memory.live_nbytes) == len(trace.ops)


def test_nothing_takes_no_memory():
    with record() as trace:
        pass
    memory = trace.memory
    assert (memory.live_nbytes, memory.peak_nbytes, memory.peak_index) == ((), 0, None)
    assert memory.peak.storages == ()
    assert len(memory.to_pandas()) == 0
    assert "peak" not in trace.summary()


def test_the_headline_says_the_peak():
    with record() as trace:
        torch.ones(1024)
    assert " · peak 4.0 KiB on cpu · " in trace.summary()


def test_a_copied_trace_has_the_same_memory():
    with record() as trace:
        nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
    copied = pickle.loads(pickle.dumps(trace))
    assert copied.memory.live_by_category == trace.memory.live_by_category


@pytest.fixture(scope="module")
def trained():
    with record() as trace:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 8, device="cuda").cpu()).sum().backward()
        optimizer.step()
    return trace


def test_categories_and_devices_add_up(trained):
    memory = trained.memory
    for parts in (memory.live_by_category, memory.live_by_place):
        sums = tuple(map(sum, zip(*parts.values(), strict=True)))
        assert sums == memory.live_nbytes


def test_the_table_has_a_row_for_each_operator(trained):
    table = trained.memory.to_pandas()
    assert list(table["op"]) == [call.op for call in trained.ops]
    assert tuple(table["live_nbytes"]) == trained.memory.live_nbytes
    assert tuple(table["gradient"]) == trained.memory.live_by_category["gradient"]
    assert table["cuda:0"].max() == trained.memory.peak_by_place["cuda:0"] == 128


def test_what_is_alive_adds_up_at_each_operator(trained):
    memory = trained.memory
    for index, nbytes in enumerate(memory.live_nbytes):
        living = memory.at(index)
        assert sum(living.by_category.values()) == living.nbytes == nbytes
        assert sum(living.by_module.values()) == sum(living.by_line.values()) == nbytes


def test_there_is_no_moment_outside_of_the_program(trained):
    assert trained.memory.at(-1).index == len(trained.ops) - 1
    with pytest.raises(IndexError, match=r"operator 10000 of \d+ was asked for"):
        trained.memory.at(10_000)


@pytest.mark.parametrize(
    ("device", "place"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("meta", "meta")]
)
def test_code_that_names_no_device_runs_where_its_kernels_are(device, place):
    with record(as_device=device) as trace:
        torch.ones(2)
    assert trace.memory.peak_by_place == {place: 8}


def test_beside_a_named_accelerator_the_rest_lies_on_the_cpu():
    with record(as_device="cuda") as trace:
        torch.ones(2), torch.ones(8, device="cuda")
    assert trace.memory.peak_by_place == {"cuda:0": 32, "cpu": 8}
