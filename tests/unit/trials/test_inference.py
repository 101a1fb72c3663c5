"""Inference with a cache of keys and values: bytes a token, longest context, batch."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from meta_magic import record
from meta_magic.trials.fit import fit_trace

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 8, 2, 64, 8
WIDTH = HEADS * HEAD_DIM
ROOM = 16 * 10**9
CACHE_NBYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
"""What one token takes in bfloat16: its keys and values in each layer."""


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
        keys, values = cache[:, :, : begin + n].chunk(2, 1)
        found = nn.functional.scaled_dot_product_attention(
            q, keys, values, is_causal=n > 1, enable_gqa=True
        )
        return found.transpose(1, 2).reshape(batch, n, WIDTH)


def record_decoding(batch=4, length=128):
    """Compute one token after as many as there are in a cache."""
    with record(as_device="cuda") as trace, torch.no_grad():
        layers = [Attention().bfloat16() for _ in range(LAYERS)]
        shape = batch, 2 * KV_HEADS, length, HEAD_DIM
        caches = [torch.zeros(shape, dtype=torch.bfloat16) for _ in layers]
        x = torch.ones(batch, 1, WIDTH, dtype=torch.bfloat16)
        for layer, cache in zip(layers, caches, strict=True):
            x = layer(x, cache, length - 1)
    return trace


def test_a_token_takes_its_keys_and_values():
    found = fit_trace(record_decoding(), "t4", {"length": ...}).sizes["length"]
    assert found.nbytes_per_unit == 4 * CACHE_NBYTES
    peaks = [record_decoding(length=n).memory.peak_nbytes for n in (1000, 1001)]
    assert [found.peak_nbytes(n) for n in (1000, 1001)] == peaks


def test_a_sequence_takes_its_tokens():
    found = fit_trace(record_decoding(), "t4", {"batch": ...}).sizes["batch"]
    # Beside the cache, in attention: what goes into the layer, queries, keys and values
    # of one token, results, each in bfloat16; and a float32 for each head.
    one_token = (3 * WIDTH + 2 * KV_HEADS * HEAD_DIM) * 2 + HEADS * 4
    assert found.nbytes_per_unit == 128 * CACHE_NBYTES + one_token


@pytest.mark.parametrize("name", ["length", "batch"])
def test_the_longest_context_and_the_largest_batch_fit_and_no_more(name):
    fit = fit_trace(record_decoding(), "t4", {name: ...})
    largest = fit.largest[name]
    peaks = [
        record_decoding(**{name: n}).memory.peak_nbytes for n in (largest, largest + 1)
    ]
    assert peaks[0] <= ROOM < peaks[1]
    assert f"at most {largest}, " in str(fit)
    assert " for one more (interpolated" in str(fit)


CONFIG = LlamaConfig(
    vocab_size=100,
    hidden_size=WIDTH,
    intermediate_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
)
"""A Llama with the same cache, in float32."""


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
    assert found.nbytes_per_unit > 2 * 2 * CACHE_NBYTES
