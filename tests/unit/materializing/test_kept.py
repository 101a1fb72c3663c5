"""What materialize() keeps of a module: its objects, ties, strides and attributes."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, tensors_of
from tests.unit.materializing.modules import Masked, Shared, Tied


def test_tensors_stay_the_same_objects():
    _, made, _, _ = build_twice(Masked)
    before = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    materialize(made)
    after = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("init", INITS)
def test_a_tie_is_kept(init):
    _, made, _, _ = build_twice(Tied)
    report = materialize(made, init=init)
    assert made.head.weight is made.embed.weight
    assert report.ties == (("head.weight", "embed.weight"),)


@pytest.mark.parametrize("init", ["replay", "empty"])
def test_views_of_one_storage_stay_views_of_one_storage(init):
    _, made, _, _ = build_twice(Shared)
    materialize(made, init=init)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]
    assert made.matrix.stride() == (1, 3)


def test_a_shared_submodule_is_reported_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.ties == (("1.weight", "0.weight"), ("1.bias", "0.bias"))


def test_channels_last_is_kept():
    real, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made)
    assert made.weight.is_contiguous(memory_format=torch.channels_last)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("init", sorted({*INITS} - {"replay"}))
def test_strides_are_kept_without_a_replay(init):
    _, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made, init=init)
    assert made.weight.stride() == (27, 1, 9, 3)


def test_requires_grad_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.requires_grad_(False)
    materialize(made)
    assert (made.weight.requires_grad, made.bias.requires_grad) == (False, True)


def test_a_parameter_is_a_leaf():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4).bfloat16())
    materialize(made)
    assert made.weight.is_leaf


def test_classes_of_parameters_and_buffers_are_kept():
    class Special(nn.Parameter):
        pass

    def build():
        module = nn.Module()
        module.special = Special(torch.ones(2))
        module.buffer = nn.Buffer(torch.ones(2))
        return module

    _, made, _, _ = build_twice(build)
    materialize(made)
    assert (type(made.special), type(made.buffer)) == (
        Special,
        nn.Buffer(None).__class__,
    )


def test_attributes_of_a_parameter_are_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.is_special = "yes"
    materialize(made)
    assert made.weight.is_special == "yes"


def test_a_real_tensor_is_not_touched():
    with record():
        made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.arange(4.0))
    address, version = made.bias.data_ptr(), made.bias._version
    report = materialize(made)
    assert (made.bias.data_ptr(), made.bias._version) == (address, version)
    assert report.names("kept") == ("bias",)


def test_a_second_time_nothing_is_done():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    address = made.weight.data_ptr()
    report = materialize(made)
    assert made.weight.data_ptr() == address
    assert report.names("kept") == ("weight", "bias")


def test_a_module_without_tensors_is_fine():
    assert materialize(nn.ReLU()).tensors == ()


def test_a_weak_reference_goes_on_to_mean_the_parameter():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    weak = weakref.ref(made.weight)
    materialize(made)
    gc.collect()
    assert weak() is made.weight


def test_the_training_mode_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4).eval())
    materialize(made)
    assert not made.training


def test_a_materialized_module_can_be_copied_deeply():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    assert_bit_equal(copy.deepcopy(made), real)
