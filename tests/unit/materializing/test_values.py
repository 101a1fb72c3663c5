"""The values that a replay gives a module: to the bit those of eager construction."""

import pytest
import torch
from torch import nn

from meta_magic import materialize
from tests.unit.eager import assert_bit_equal, assert_same_tensor, build_twice
from tests.unit.materializing.modules import BUILDS, Masked, register


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", BUILDS)
def test_a_replay_is_bit_equal_to_eager(name, cache):
    real, made, _, _ = build_twice(BUILDS[name], cache=cache)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.uninitialized == ()


def test_replay_is_what_it_does_unless_told():
    real, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {tensor.filled_by for tensor in report.tensors} == {"replay"}
    assert_bit_equal(made, real)


def test_a_tensor_that_is_a_plain_attribute_gets_its_values():
    real, made, _, _ = build_twice(Masked)
    materialize(made)
    assert_same_tensor(made.scale, real.scale)


def test_tensors_in_lists_get_their_values():
    real, made, _, _ = build_twice(Masked)
    materialize(made)
    assert [t.tolist() for t in made.listed] == [t.tolist() for t in real.listed]


def test_tensors_in_a_tuple_in_a_dict_get_their_values():
    _, made, _, _ = build_twice(Masked)
    materialize(made)
    assert made.mapped["deep"][0].tolist() == [7.0, 7.0]


def test_a_materialized_module_computes_what_the_real_one_does():
    real, made, _, _ = build_twice(lambda: nn.LSTM(3, 4, num_layers=2))
    materialize(made)
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(made(x)[0], real(x)[0])


def test_values_made_under_another_default_dtype_are_the_same():
    def build():
        torch.set_default_dtype(torch.float64)
        try:
            return register(torch.linspace(0, 1, 7) / torch.arange(1, 8))
        finally:
            torch.set_default_dtype(torch.float32)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_submodule_alone_gets_what_it_has_within_the_whole():
    def build():
        return nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 4))

    real, made, _, _ = build_twice(build)
    materialize(made[2])
    assert_bit_equal(made[2], real[2])


def test_the_rest_stays_on_meta_if_a_submodule_is_materialized():
    _, made, _, _ = build_twice(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)))
    materialize(made[1])
    assert [t.is_meta for t in made[0].parameters()] == [True, True]


def test_submodules_one_by_one_in_any_order_are_the_whole():
    def build():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))

    real, made, _, _ = build_twice(build)
    for submodule in reversed(made):
        materialize(submodule)
    assert_bit_equal(made, real)


def test_a_batch_norm_that_was_trained_as_first_layer_has_its_values():
    def build():
        module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(torch.randn(3, 4)).pow(2).mean().backward()
        optimizer.step()
        return module

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_module_put_together_of_two_recordings_has_the_values_of_both():
    real_first, first, _, _ = build_twice(lambda: nn.Linear(2, 3), seed=1)
    real_second, second, _, _ = build_twice(lambda: nn.Linear(3, 2), seed=2)
    materialize(made := nn.Sequential(first, second))
    assert_bit_equal(made, nn.Sequential(real_first, real_second))


def test_cpu_with_an_index_is_the_cpu():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made, "cpu:0")
    assert_bit_equal(made, real)


def test_a_replay_of_a_transformers_model_is_bit_equal_to_eager():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11)
    real, made, _, _ = build_twice(lambda: transformers.GPT2LMHeadModel(config))
    materialize(made)
    assert_bit_equal(made, real)
    assert made.lm_head.weight is made.transformer.wte.weight
