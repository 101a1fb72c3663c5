"""Inference with a cache of keys and values: bytes a token, longest context, batch."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from meta_magic import record
from meta_magic.trials.fit import fit_trace

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 8, 2, 16, 3
WIDTH = HEADS * HEAD_DIM
ROOM = 16 * 10**9


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD_DIM, bias=False)

    def forward(self, x, cache, begin):
        batch, n, _ = x.shape
        q = self.q(x).view(batch, n, HEADS, HEAD_DIM).transpose(1, 2)
        kv = self.kv(x).view(batch, n, 2 * KV_HEADS, HEAD_DIM).transpose(1, 2)
        cache[:, :, begin : begin + n] = kv
        del kv
        keys, values = cache[:, :, : begin + n].chunk(2, 1)
        found = nn.functional.scaled_dot_product_attention(
            q, keys, values, is_causal=n > 1, enable_gqa=True
        )
        return found.transpose(1, 2).reshape(batch, n, WIDTH)


@torch.no_grad()
def decode(layers, cache, batch, length):
    """Compute one token, behind as many as there are in a cache."""
    x = torch.ones(batch, 1, WIDTH)
    for layer, kept in zip(layers, cache, strict=True):
        x = layer(x, kept, length - 1)


def make_layers():
    return nn.ModuleList(Attention() for _ in range(LAYERS))


def record_decoding(batch=4, length=128, dtype=torch.float32):
    with record(as_device="cuda") as trace:
        layers = make_layers()
        cache = [
            torch.zeros(batch, 2 * KV_HEADS, length, HEAD_DIM, dtype=dtype)
            for _ in layers
        ]
        decode(layers, cache, batch, length)
    return trace


def test_a_token_takes_its_keys_and_values():
    found = fit_trace(record_decoding(), "t4", {"length": ...}).sizes["length"]
    # Keys and values of each layer, in float32, of four sequences.
    assert found.nbytes_per_unit == 4 * (2 * LAYERS * KV_HEADS * HEAD_DIM * 4)
    peaks = [record_decoding(length=n).memory.peak_nbytes for n in (1000, 1001)]
    assert [found.peak_nbytes(n) for n in (1000, 1001)] == peaks


def test_a_sequence_takes_its_tokens():
    found = fit_trace(record_decoding(), "t4", {"batch": ...}).sizes["batch"]
    cache = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4 * 128
    peaks = [record_decoding(batch=n).memory.peak_nbytes for n in (100, 101)]
    assert found.nbytes_per_unit == peaks[1] - peaks[0]
    # Beside it one token's activations: inputs, queries, keys, values, results.
    assert cache < found.nbytes_per_unit < cache + 6 * WIDTH * 4


@pytest.mark.parametrize("name", ["length", "batch"])
def test_the_longest_context_and_the_largest_batch_fit_and_no_more(name):
    fit = fit_trace(record_decoding(), "t4", {name: ...})
    largest = fit.largest[name]
    peaks = [
        record_decoding(**{name: n}).memory.peak_nbytes for n in (largest, largest + 1)
    ]
    assert peaks[0] <= ROOM < peaks[1]
    assert "KiB for one more" in str(fit)


CONFIG = LlamaConfig(
    vocab_size=100,
    hidden_size=WIDTH,
    intermediate_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
)
"""A Llama with the same cache."""

CACHE_NBYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4


def record_llama(batch=2, length=64):
    """Fill a cache with a prompt, and compute the token after it."""
    with record(as_device="cuda") as trace, torch.no_grad():
        model = LlamaForCausalLM(CONFIG).eval()
        prompt = torch.zeros(batch, length, dtype=torch.long)
        out = model(prompt, use_cache=True, logits_to_keep=1)
        token = out.logits.argmax(-1)
        model(token, past_key_values=out.past_key_values, use_cache=True)
    return trace


def test_a_prompt_and_a_token_of_transformers():
    fit = fit_trace(record_llama(), "t4", {"length": range(64, 2049, 64)})
    found = fit.sizes["length"]
    assert found.interpolation is not None
    assert found.peak_nbytes(1024) == record_llama(length=1024).memory.peak_nbytes
    assert found.nbytes_per_unit > 2 * CACHE_NBYTES


def test_a_cache_of_fixed_length():
    batch, length = 2, 64
    with record(as_device="cuda") as trace, torch.no_grad():
        model = LlamaForCausalLM(CONFIG).eval()
        cache = StaticCache(config=CONFIG, max_cache_len=length)
        token = torch.zeros(batch, 1, dtype=torch.long)
        model(token, past_key_values=cache, use_cache=True)
    found = fit_trace(trace, "t4", {"length": ...}).sizes["length"]
    assert found.nbytes_per_unit >= 2 * CACHE_NBYTES
