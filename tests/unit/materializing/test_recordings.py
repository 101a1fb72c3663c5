"""Modules of several recordings that go on from each other, and changes between."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import Masked, Shared, holding, register


def test_a_change_in_place_in_a_second_recording_counts():
    def build():
        return nn.Linear(3, 4)

    _, made, _, _ = build_twice(build)
    with record():
        nn.init.zeros_(made.weight)
    materialize(made)
    assert made.weight.tolist() == [[0] * 3] * 4


def test_what_a_second_recording_does_not_change_is_as_the_first_made_it():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        nn.init.zeros_(made.weight)
        made(torch.ones(3))
    materialize(made)
    assert torch.equal(made.bias, real.bias)


def test_a_cast_in_a_second_recording_counts():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        made.half()
    materialize(made)
    assert_bit_equal(made, real.half())


def test_statistics_of_a_forward_in_a_second_recording_count():
    real, made, _, _ = build_twice(lambda: nn.BatchNorm1d(3))
    real(torch.arange(12.0).view(4, 3))
    with record():
        made(torch.arange(12.0).view(4, 3))
    materialize(made)
    assert_bit_equal(made, real)


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


def test_three_recordings_follow_each_other():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    for factor in (2, 3):
        with record(), torch.no_grad():
            made.weight.mul_(factor)
    with torch.no_grad():
        real.weight.mul_(2).mul_(3)
    materialize(made)
    assert_bit_equal(made, real)


def test_the_trace_of_the_first_recording_gives_the_values_at_its_end():
    real, made, trace, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        nn.init.zeros_(made.weight)
    materialize(made, trace=trace)
    assert_bit_equal(made, real)


def test_the_trace_of_the_last_recording_gives_what_no_trace_gives():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record() as trace:
        nn.init.ones_(made.weight)
    materialize(made, trace=trace)
    assert made.weight.tolist() == [[1] * 3] * 4


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_change_outside_of_any_recording_is_refused_by_name(name):
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.zeros_(getattr(made, name))
    with pytest.raises(MaterializeError, match=f"'{name}': it was changed in place"):
        materialize(made)


def test_a_change_between_two_recordings_is_refused_by_name():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.ones_(made.weight)
    with record(), torch.no_grad():
        made.weight.mul_(2)
    with pytest.raises(
        MaterializeError, match=r"'weight': .*mul_.* in line \d+, was changed in place"
    ):
        materialize(made)


def test_a_change_outside_to_what_a_second_recording_reads_is_refused():
    _, first, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.ones_(first.weight)
    with record():
        second = register(first.weight.detach() * 2)
    with pytest.raises(MaterializeError, match="changed in place"):
        materialize(second)


def test_a_change_outside_to_a_tensor_in_a_list_is_refused_by_name():
    _, made, _, _ = build_twice(Masked)
    made.listed[1].fill_(3)
    with pytest.raises(MaterializeError, match=r"'listed\[1\]': it was changed"):
        materialize(made)


def test_a_change_outside_to_a_tensor_of_no_module_then_is_refused_by_name():
    with record():
        weight = torch.ones(3)
    weight.fill_(3)
    with pytest.raises(MaterializeError, match="'buffer': it was changed in place"):
        materialize(register(weight))


def test_a_change_within_another_tie_is_refused():
    _, made, _, _ = build_twice(Shared)
    with torch.no_grad():
        made.matrix.fill_(3)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(made)


def test_replacing_a_tensor_of_the_first_recording_takes_the_new_one():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        made.weight = nn.Parameter(torch.full((4, 3), 6.0))
    materialize(made)
    assert made.weight.tolist() == [[6] * 3] * 4


def test_a_change_of_one_of_two_tensors_on_a_storage_is_refused():
    with record():
        made = nn.Module()
        made.a = nn.Parameter(torch.zeros(2))
        with torch.no_grad():
            made.a.add_(1)
            made.a.add_(1)
        made.b = nn.Parameter(made.a.data)
    with torch.no_grad():
        made.b.add_(5)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(made)


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


def test_a_thousand_recordings_can_follow_each_other():
    with record():
        weight = torch.zeros(2)
    for _ in range(1000):
        with record():
            weight.add_(1)
    materialize(made := holding(made=weight))
    assert made.made.tolist() == [1000, 1000]
