"""Modules that initialize themselves (``reset``), or are left ``empty``."""

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal, build_twice, tensors_of
from tests.unit.materializing.modules import Masked


def test_reset_initializes_by_the_methods_of_the_modules():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    torch.manual_seed(5)
    wanted = nn.Linear(3, 4)
    torch.manual_seed(5)
    report = materialize(made, init="reset")
    assert_bit_equal(made, wanted)
    assert report.names("reset") == ("weight", "bias")


def test_reset_resets_statistics():
    with record():
        made = nn.BatchNorm1d(3)
        made.running_mean.fill_(9)
    report = materialize(made, init="reset")
    assert made.running_mean.tolist() == [0, 0, 0]
    assert report.uninitialized == ()


def test_reset_works_without_a_recording():
    made = nn.Linear(3, 4, device="meta")
    torch.manual_seed(5)
    wanted = nn.Linear(3, 4)
    torch.manual_seed(5)
    materialize(made, init="reset")
    assert_bit_equal(made, wanted)


def test_reset_reports_a_buffer_that_nothing_writes_as_uninitialized():
    with record():
        made = nn.Linear(3, 4)
        made.register_buffer("mask", torch.ones(3))
    report = materialize(made, init="reset")
    assert report.uninitialized == ("mask",)


def test_reset_reaches_attention_in_all_its_parts():
    _, made, _, _ = build_twice(lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True))
    assert materialize(made, init="reset").uninitialized == ()


def test_reset_calls_init_weights_of_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)
    with record():
        made = transformers.GPT2LMHeadModel(config)
    report = materialize(made, init="reset")
    assert "transformer.wte.weight" in report.names("reset")
    assert made.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.3)


def test_reset_keeps_what_is_real():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    before = made.weight.detach().clone()
    materialize(made, init="reset")
    assert torch.equal(made.weight, before)


def test_reset_keeps_the_real_child_of_a_module_that_resets_its_children():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.real = nn.Linear(2, 2)
            self.made = nn.Linear(2, 2, device="meta")

        def reset_parameters(self):
            self.real.reset_parameters()
            self.made.reset_parameters()

    block = Block()
    before = block.real.weight.detach().clone()
    materialize(block, init="reset")
    assert torch.equal(block.real.weight, before)


def test_empty_reports_everything_as_uninitialized():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    report = materialize(made, init="empty")
    assert report.uninitialized == ("weight", "bias")


def test_empty_makes_every_tensor_real():
    _, made, _, _ = build_twice(Masked)
    materialize(made, init="empty")
    real = [*tensors_of(made).values(), made.scale, *made.listed]
    assert {tensor.device.type for tensor in real} == {"cpu"}
