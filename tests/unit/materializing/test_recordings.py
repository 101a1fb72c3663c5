"""Tensors of several recordings, of none, and real tensors that a cell reads."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.modules import (
    Masked,
    build_norm,
    holding,
    holding_odd,
    recorded,
    register,
)


def test_an_optimizer_step_in_a_second_recording_counts():
    def train(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(module(torch.ones(2, 3)), torch.zeros(2, 4)).backward()
            optimizer.step()

    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    train(real)
    with record():
        train(made)
    materialize(made)
    assert_bit_equal(made, real)


def test_the_trace_of_the_first_recording_gives_the_values_at_its_end():
    real, made, trace, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        nn.init.zeros_(made.weight)
    materialize(made, trace=trace)
    assert_bit_equal(made, real)


CHANGES = {
    "weight": (lambda: nn.Linear(3, 4), lambda made: made.weight),
    "bias": (lambda: nn.Linear(3, 4), lambda made: made.bias),
    "listed[1]": (Masked, lambda made: made.listed[1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_outside_of_any_recording_is_refused_by_name(name):
    build, find = CHANGES[name]
    _, made, _, _ = build_twice(build)
    nn.init.zeros_(find(made))
    wanted = re.escape(f"'{name}': it was changed in place")
    with pytest.raises(MaterializeError, match=wanted):
        materialize(made)


def test_a_change_outside_to_what_a_second_recording_reads_is_refused():
    _, first, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.ones_(first.weight)
    with record():
        second = register(first.weight.detach() * 2)
    with pytest.raises(MaterializeError, match="changed in place"):
        materialize(second)


def test_recordings_that_need_each_other_are_replayed_once_each():
    tensors = []
    for _ in range(2):
        with record():
            tensors.append(torch.ones(3))
    for _ in range(30):
        with record():
            tensors.append(tensors[-1] + tensors[-2])
    report = materialize(made := holding(made=tensors[20]))
    assert made.made.tolist() == [10946.0] * 3  # the 21st Fibonacci number
    assert report.n_operators == 21


def test_a_storage_that_two_recordings_go_on_from_is_each_ones_own():
    with record():
        base = torch.ones(2)
    with record():
        first = base * 2
        base.add_(1)
    with record():
        made = holding(made=first + base)
    materialize(made)
    assert made.made.tolist() == [4, 4]


def test_hundreds_of_recordings_can_follow_each_other():
    with record():
        weight = torch.zeros(2)
    for _ in range(300):
        with record():
            weight.add_(1)
    materialize(made := holding(made=weight))
    assert made.made.tolist() == [300, 300]


# Real tensors of a cell: left alone, or said to be of unknown values.


def test_a_real_tensor_that_was_not_drawn_is_not_touched():
    with record():
        made = nn.Linear(2, 2)
        with torch.device("cpu"):
            made.register_buffer("pos", torch.zeros(4))
        made.pos.numpy()[:] = 7
    report = materialize(made)
    assert made.pos.tolist() == [7] * 4
    assert report.names("kept") == ("pos",)


def test_a_real_tensor_that_torch_alone_wrote_is_not_said():
    with record():
        with torch.device("cpu"):
            values = torch.zeros(3)
            values += 1
        made = holding(made=torch.empty(3).copy_(values))
    assert materialize(made).notes == ()
    assert made.made.tolist() == [1, 1, 1]


# Modules that no recording knows, or not all of: an error that names the part.


def test_a_module_of_no_recording_is_an_error_that_names_it_and_the_way_out():
    with torch.device("meta"):
        made = build_norm()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made)
    text = str(caught.value)
    assert "cannot replay '0.weight': it was not built under a recording" in text
    assert "Build the module under %%meta or mm.record()" in text
    assert "init='reset', init='empty' or a checkpoint" in text
    assert is_untouched(made, before)


def test_a_module_that_is_in_part_of_no_recording_is_an_error_that_names_the_part():
    made = recorded()
    made.append(nn.Linear(3, 4, device="meta"))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"'2\.weight': it was not built"):
        materialize(made)
    assert is_untouched(made, before)


def test_a_module_of_the_block_that_still_runs_is_an_error():
    with record():
        made = build_norm()
        with pytest.raises(MaterializeError, match="not built under a recording"):
            materialize(made)


def test_values_that_came_from_meta_tensors_outside_are_an_error_that_says_so():
    outside = torch.ones(3, device="meta")
    with record():
        made = holding_odd(outside * 2)
    with pytest.raises(MaterializeError, match="came from outside of the recording"):
        materialize(made)


# Data that a cell reads: real tensors, arrays and Python values.


def test_real_data_counts_as_it_was_when_recorded():
    real, values = torch.arange(4.0), np.arange(4, dtype=np.float32)
    with record():
        made = nn.Sequential(
            register(torch.empty(4).copy_(real)),
            register(torch.from_numpy(values).to("meta")),
            register(torch.tensor(values)),
            register(torch.as_tensor(values)),
        )
    values[:] = 0
    real.zero_()
    materialize(made)
    assert [m.buffer.tolist() for m in made] == [[0, 1, 2, 3]] * 4


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[17].fill_(-1),
        lambda x: x.copy_(x.view(-1, 2, 2).flip(1).reshape(-1)),  # whole 64-bit words
    ],
)
def test_a_large_real_tensor_that_was_changed_since_is_refused(change):
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    change(values)
    with pytest.raises(
        MaterializeError, match=r"was changed since.*run the cell again"
    ):
        materialize(made)


def test_a_large_real_tensor_of_a_checkpoint_loaded_in_the_cell_is_not_shared():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    materialize(made)
    values.zero_()
    assert made.buffer[1].item() == 1
