"""Layers whose numbers come after many that nothing needs: these are skipped."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional

import meta_magic as mm
from meta_magic.replaying import word_counts
from tests.unit.eager import assert_same_tensor

LLAMA = {
    "hidden_size": 72,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def build_llama():
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).model.layers


class Mixed(nn.Module):
    """A layer whose tensors are drawn in many ways; some draws nothing needs."""

    def __init__(self, width, dtype):
        super().__init__()
        self.linear = nn.Linear(width, width + 3, dtype=dtype)
        self.few = nn.Parameter(torch.empty(7, dtype=dtype).normal_())
        self.truncated = nn.Parameter(torch.empty(width, 5, dtype=dtype))
        nn.init.trunc_normal_(self.truncated, std=0.02)
        nn.init.kaiming_normal_(self.linear.weight)
        self.norm = nn.BatchNorm1d(width, dtype=dtype)
        self.register_buffer("order", torch.randperm(width))
        self.register_buffer("chosen", torch.randint(9, (width,)))
        self.register_buffer("waits", torch.empty(width, dtype=dtype).exponential_())
        self.register_buffer("drops", torch.empty(width, dtype=dtype).bernoulli_(0.4))
        self.register_buffer("drawn", torch.multinomial(torch.ones(width), 3))
        self.register_buffer("noise", functional.dropout(torch.ones(width, 2)))
        torch.empty(width).uniform_()


def build_mixed(dtype=torch.float32):
    return nn.ModuleList(Mixed(width, dtype) for width in (19, 64, 33, 50))


BUILDS = {
    "llama": build_llama,
    "float32": build_mixed,
    "float64": lambda: build_mixed(torch.float64),
    "bfloat16": lambda: build_mixed(torch.bfloat16),
    "float16": lambda: build_mixed(torch.float16),
}


@pytest.mark.parametrize("min_jump", [1, 2**23])
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
@pytest.mark.parametrize("name", BUILDS)
def test_the_last_layer_alone_is_as_in_the_whole(name, seed, min_jump, monkeypatch):
    monkeypatch.setattr(word_counts, "MIN_JUMP", min_jump)
    torch.manual_seed(seed)
    real = BUILDS[name]()
    torch.manual_seed(seed)
    with mm.record():
        layers = BUILDS[name]()
    for index in (-1, 1):  # the second by what the first left
        mm.materialize(layers[index])
        wanted = real[index].state_dict()
        for key, tensor in layers[index].state_dict().items():
            assert_same_tensor(tensor, wanted[key])


@pytest.mark.parametrize("name", BUILDS)
def test_what_is_drawn_after_a_module_is_as_after_its_construction(name):
    torch.manual_seed(3)
    BUILDS[name]()
    wanted = torch.cat([torch.randn(5), torch.randn(40)])
    torch.manual_seed(3)
    with mm.record():
        layers = BUILDS[name]()
    mm.materialize(layers)
    if name != "llama":  # of which only the layers are made: the head is drawn later
        assert_same_tensor(torch.cat([torch.randn(5), torch.randn(40)]), wanted)


def test_eighty_billion_numbers_are_skipped_in_a_moment():
    with mm.record():
        layers = nn.ModuleList(nn.Linear(20_000, 20_000) for _ in range(200))
        last = nn.Linear(40, 30)
    n_words = sum(parameter.numel() for parameter in layers.parameters())
    started = time.process_time()
    mm.materialize(last)
    # To draw them takes two minutes at the least.
    assert time.process_time() - started < n_words / 5e9
