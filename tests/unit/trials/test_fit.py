"""The largest size that fits, beside recordings at that size and the next."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from meta_magic import record
from meta_magic.cost.device_table import list_devices
from meta_magic.errors import TrialError
from meta_magic.trials.fit import fit_trace, try_alternatives
from tests.unit.wasteful import Block

DEVICE = "t4"
ROOM = 16 * 10**9


def train(batch, width, layers=3):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(batch, width)).relu().sum()
    loss.backward()
    optimizer.step()


def record_training(batch=8, width=1024):
    with record() as trace:
        train(batch, width)
    return trace


def peak_of(**sizes):
    return record_training(**sizes).memory.peak_nbytes


def test_the_peak_is_that_of_the_recording():
    fit = fit_trace(record_training(), DEVICE, {})
    assert fit.peak_nbytes == peak_of(batch=8)
    assert (fit.fits, fit.nbytes, fit.largest) == (True, ROOM, {})


@pytest.mark.parametrize("name", ["batch", "width"])
def test_the_largest_size_fits_and_the_next_one_does_not(name):
    fit = fit_trace(record_training(), DEVICE, {name: ...})
    largest = fit.largest[name]
    assert peak_of(**{name: largest}) <= ROOM < peak_of(**{name: largest + 1})
    assert fit.confirmed


@pytest.mark.parametrize(("name", "size"), [("batch", 12345), ("width", 777)])
def test_the_peak_at_any_size_is_that_of_a_recording_there(name, size):
    found = fit_trace(record_training(), DEVICE, {name: ...}).sizes[name]
    assert found.interpolation is not None
    assert found.peak_nbytes(size) == peak_of(**{name: size})


def test_names_alone_mean_all_values():
    trace = record_training()
    expected = trace.fit(DEVICE, vary={"batch": ...}).largest
    assert trace.fit(DEVICE, vary={"batch"}).largest == expected
    assert trace.fit(DEVICE, vary="batch").largest == expected


def test_candidates_are_kept_to():
    candidates = [2**20, 16, 2**18, 2**19]
    fit = fit_trace(record_training(), DEVICE, {"batch": candidates})
    fitting = [n for n in sorted(candidates) if peak_of(batch=n) <= ROOM]
    assert fit.largest["batch"] == fitting[-1]


def test_where_none_fits_it_is_0():
    fit = fit_trace(record_training(), DEVICE, {"width": [2**16, 2**17]})
    assert fit.largest == {"width": 0}
    assert fit.sizes["width"].peak_nbytes(2**16) == peak_of(width=2**16) > ROOM
    assert "none fits, 65536 takes " in str(fit)


def step_by_size(batch):
    """Another program for even and odd sizes."""
    rows = torch.ones(batch, 10**6)
    if batch % 2:
        rows = rows * 2 + 1
    return rows.sum()


def test_a_program_that_changes_with_the_size_is_searched_by_recordings():
    batch = 4
    with record() as trace:
        step_by_size(batch)
    found = fit_trace(trace, DEVICE, {"batch": range(1, 10001)}).sizes["batch"]
    assert found.interpolation is None
    assert found.confirmed
    # An odd one has up to two more arrays of 4 MB a row at its peak; 4,000 rows fit.
    with record() as at_most:
        step_by_size(found.largest)
    with record() as next_one:
        step_by_size(found.largest + 1)
    assert at_most.memory.peak_nbytes <= ROOM < next_one.memory.peak_nbytes


def test_a_size_that_the_block_binds_is_found():
    with record() as trace:
        batch, width = 8, 512
        train(batch, width)
    fit = fit_trace(trace, DEVICE, {"batch": [4, 64]})
    assert (fit.sizes["batch"].current, fit.largest) == (8, {"batch": 64})


def test_a_part_on_the_accelerator_alone_counts():
    batch = 8
    with record(as_device="cuda") as trace:
        kept = torch.ones(10**9)
        moved = torch.ones(batch, 1000, device="cuda")
    del kept, moved
    fit = fit_trace(trace, DEVICE, {"batch": ...})
    assert (fit.place, fit.peak_nbytes) == ("cuda:0", 8 * 1000 * 4)
    assert fit.largest["batch"] == 2**20  # 4 GB: the largest that is tried


def test_of_two_accelerators_the_one_counts_that_needs_most_at_each_size():
    batch = 2
    with record(as_device="cuda") as trace:
        rows = torch.ones(batch, 10**6, device="cuda:0")
        others = torch.ones(40, batch * batch, 10**4, device="cuda:1")
    del rows, others
    fit = fit_trace(trace, DEVICE, {"batch": range(1, 1001)})
    # 4 MB a row on one, and 1.6 MB a pair of rows on the other, beside 16 GB.
    assert fit.place == "cuda:0"
    assert fit.peak_nbytes == 2 * 4 * 10**6
    assert fit.largest == {"batch": 100}
    assert fit.sizes["batch"].peak_nbytes(100) == ROOM


@pytest.mark.parametrize("name", ["nobody", "model", "zero", "text"])
def test_what_is_no_size_is_named(name):
    model, zero, text = nn.Linear(2, 2), 0, "8"
    with record() as trace:
        model(torch.ones(len(text), zero + 2))
    with pytest.raises(TrialError, match=f"{name!r}"):
        fit_trace(trace, DEVICE, {name: ...})


@pytest.mark.parametrize("candidates", [[], [0, 1], [1.5], ["8"]])
def test_candidates_that_are_no_sizes_are_refused(candidates):
    with pytest.raises(TrialError, match="sizes"):
        fit_trace(record_training(), DEVICE, {"batch": candidates})


def test_an_error_at_a_size_says_at_which():
    rows = 4
    with record() as trace:
        torch.ones(rows).view(2, -1)
    with pytest.raises(TrialError, match=r"with rows=\d, it raises RuntimeError"):
        fit_trace(trace, DEVICE, {"rows": [1, 3, 5]})


def test_a_block_that_failed_is_declined():
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(TrialError, match=r"it raised RuntimeError: .*mat1 and mat2"):
        fit_trace(trace, DEVICE)


def test_a_processor_whose_memory_varies_is_declined():
    varying = [device.name for device in list_devices() if not device.nbytes]
    for name in varying:
        with pytest.raises(TrialError, match="varies"):
            fit_trace(record_training(), name)
    assert varying


SAVED = {"checkpointing": 50, "bfloat16": 40, "8-bit": 30, "paged 8-bit": 35}


def need(choices):
    """Need 100, less what each choice saves; there is no SGD here, and no autocast."""
    if {*choices} & {"sgd", "autocast"}:
        raise TrialError
    return 100 - sum(SAVED.get(name, 0) for name in choices)


def say(remedies):
    return [(remedy.choices, remedy.peak_nbytes) for remedy in remedies]


def test_each_choice_that_is_enough_by_itself():
    found = try_alternatives(need, 62, ())
    assert say(found) == [(("checkpointing",), 50), (("bfloat16",), 60)]


def test_as_few_together_as_are_enough():
    assert say(try_alternatives(need, 15, ())) == [(("checkpointing", "bfloat16"), 10)]


def test_if_none_are_enough_all_that_help():
    best = ("checkpointing", "bfloat16", "paged 8-bit")
    assert say(try_alternatives(need, -30, ())) == [(best, -25)]


def record_blocks(batch, width=1024):
    with record() as trace:
        model = nn.Sequential(nn.Sequential(*(Block(width) for _ in range(8))))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(batch, width)).sum().backward()
        optimizer.step()
    return trace


def test_a_batch_that_never_fits_says_what_would_make_it_fit():
    # 8 blocks save 5 x 1,024 numbers of 4 bytes a row, 21 GB, where there are 16 GB;
    # checkpointed they save 1,024 each, and all of the one that is computed again.
    batch = 1 << 17
    trace = record_blocks(batch)
    fit = fit_trace(trace, "t4", {"batch": [batch, 2 * batch]}, suggest=True)
    assert fit.largest == {"batch": 0}
    best = fit.remedies[0]
    assert best.choices == ("checkpointing",)
    again = fit_trace(trace, "t4", choices=best.choices)
    assert best.peak_nbytes == again.peak_nbytes <= fit.nbytes < fit.peak_nbytes
    assert f"none fits, {batch} takes " in str(fit)
    assert "\n  it would fit: " in str(fit)
    assert " with checkpointing" in str(fit)


def test_where_nothing_helps_it_says_what_is_still_needed():
    rows = 5 * 10**9
    with record() as trace:
        kept = torch.ones(rows, dtype=torch.float32)
    del kept
    fit = fit_trace(trace, "t4", suggest=True)
    assert "\n  still 18.6 GiB with " in str(fit)


def test_nothing_is_tried_unless_asked():
    trace = record_blocks(1 << 17)
    assert fit_trace(trace, "t4").remedies == ()


# Inference with a cache of keys and values: bytes a token, longest context, batch


HEADS, KV_HEADS, HEAD_DIM, LAYERS = 8, 2, 64, 8
WIDTH = HEADS * HEAD_DIM
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
