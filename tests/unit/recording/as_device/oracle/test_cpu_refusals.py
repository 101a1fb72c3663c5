"""Calls that the CPU refuses: the recording raises its errors, and no others."""

import gc
import os
import resource
import weakref
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn import functional as F
from torch.nn.functional import (
    cross_entropy,
    ctc_loss,
    linear,
    pad,
    scaled_dot_product_attention,
)

from meta_magic import record
from meta_magic.recording.as_device.oracle import cpu_refusals, oracle
from tests.unit.eager import assert_refused_alike

HUGE = 2**20


class Named(torch.Tensor):
    """A tensor like others."""


def weights(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


REFUSED = {
    "input of another dtype": lambda: nn.Linear(3, 4)(torch.ones(2, 3).double()),
    "classes in int32": lambda: cross_entropy(
        torch.ones(2, 3), torch.zeros(2, dtype=torch.int32)
    ),
    "one length for all": lambda: ctc_loss(
        torch.ones(5, 2, 3),
        torch.ones(2, 4, dtype=torch.long),
        torch.tensor(5),
        torch.tensor([4, 4]),
    ),
    "a vectorized function": lambda: torch.vmap(linear)(
        torch.ones(5, 2, 3), torch.ones(5, 4, 3).double()
    ),
    "a subclass": lambda: linear(
        torch.ones(2, 3).as_subclass(Named), torch.ones(4, 3).double()
    ),
    "sizes": lambda: nn.Linear(3, 4)(torch.ones(2, 4)),
    "overlapping writes": lambda: torch.ones(1).expand(3).add_(torch.ones(3)),
    "a mask of another shape": lambda: torch.ones(1, 62)[torch.ones(1, 30) > 0],
    "what is put elsewhere": lambda: torch.ones(5, 5).index_put_(
        (torch.tensor([0, 1, 2]),), torch.ones(2, 5)
    ),
    "positions that differ": lambda: torch.ones(5, 5)[
        torch.zeros(2, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    ],
    "a number at a mask of another shape": lambda: torch.ones(5, 3).__setitem__(
        torch.ones(3) > 0, 1
    ),
    "a mask that is none": lambda: torch.masked_select(torch.ones(3), torch.ones(3)),
    "attention with a mask in a row": lambda: scaled_dot_product_attention(
        *torch.ones(3, 1, 2, 3, 4), torch.ones(3)
    ),
    "attention of vectors": lambda: scaled_dot_product_attention(*torch.ones(3, 4)),
    "a view past its storage": lambda: torch.ones(3).as_strided((2, 2), (1, 2)),
    "a view past a storage that is smaller": lambda: [
        torch.ones(n)[:3].as_strided((2, 2), (1, 2)) for n in (4, 3)
    ],
}
TAKEN = {
    "as many as a mask chooses": lambda: torch.ones(4).index_put_(
        (torch.tensor([True, False, True, True]),), torch.ones(3)
    ),
    "a view into a large storage": lambda: torch.ones(2**18)[:3].as_strided(
        (512, 512), (512, 1)
    ),
    "integers to divide by": lambda: (
        torch.ones(HUGE, dtype=torch.long) % torch.ones(HUGE, dtype=torch.long)
    ),
    "what is grown as it is written": lambda: torch.ones(HUGE).addbmm_(
        torch.ones(2, 3, 1), torch.ones(2, 1, HUGE)
    ),
    "attention with a mask in a row": lambda: scaled_dot_product_attention(
        *torch.ones(3, 2, 3, 4), torch.ones(3)
    ),
    "masks of as many": lambda: torch.ones(3, 3)[
        torch.tensor([True, False, True]), torch.tensor([0, 1])
    ],
}
LARGE = {
    "input of another dtype": lambda: nn.Linear(HUGE, HUGE, bias=False)(
        weights(1, HUGE, dtype=torch.float64)
    ),
    "sizes": lambda: weights(HUGE, HUGE) @ weights(2 * HUGE, HUGE),
    "channels": lambda: nn.Conv2d(4096, 4096, 3)(weights(512, 4095, 256, 256)),
    "a number at a mask": lambda: weights(HUGE, HUGE).__setitem__(
        weights(HUGE, 3, dtype=torch.bool), 1
    ),
    "classes": lambda: cross_entropy(
        weights(HUGE, 2**17), weights(HUGE, dtype=torch.int32)
    ),
}
LARGE_WORDS = {
    "input of another dtype": "expected m1 and m2 to have the same dtype, but got: d",
    "sizes": f"mat1 and mat2 shapes cannot be multiplied .{HUGE}x{HUGE} and {2 * HUGE}",
    "channels": r"expected input\[512, 4095, 256, 256\] to have 4096 channels, but got",
    "a number at a mask": rf"The shape of the mask \[{HUGE}, 3\] at index 1 does not m",
    "classes": "expected target dtype to be Long or Byte, but got Int",
}


def peak_nbytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_in_the_words_of_the_cpu(name):
    assert_refused_alike(REFUSED[name], as_device="cpu")


@pytest.mark.parametrize("name", TAKEN)
def test_what_values_decide_is_taken(name):
    with record(as_device="cpu", cache=False):
        assert TAKEN[name]().shape == TAKEN[name]().shape


@pytest.mark.parametrize("name", LARGE)
def test_a_large_call_is_refused_with_its_own_sizes_and_takes_no_memory(name):
    before = peak_nbytes()
    refused = pytest.raises((RuntimeError, IndexError), match=LARGE_WORDS[name])
    with record(as_device="cpu"), refused:
        LARGE[name]()
    assert peak_nbytes() - before < 2**27


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((2**14, 2**14), 1.0, out=torch.empty(0)),
        lambda: pad(torch.ones(3), (0, 2**28)),
    ],
)
def test_little_that_becomes_much_takes_no_memory(make):
    before = peak_nbytes()
    with record(as_device="cpu", cache=False):
        assert make().numel() >= 2**28
    assert peak_nbytes() - before < 2**27


def test_an_out_that_is_refused_keeps_its_size():
    with record(as_device="cpu"):
        out = torch.empty(0, dtype=torch.long)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(torch.ones(3), torch.ones(3), out=out)
        assert out.shape == (0,)


def test_as_meta_all_that_meta_takes_is_taken():
    with record(as_device="meta"):
        assert REFUSED["input of another dtype"]().shape == (2, 4)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_as_cuda_a_dtype_that_only_the_cpu_lacks_is_taken():
    def multiply():
        return torch.ones(2, 2, dtype=torch.complex32).tan()

    with pytest.raises(RuntimeError, match="not implemented for"):
        multiply()
    with record(as_device="cuda"):
        assert multiply().shape == (2, 2)


@pytest.mark.parametrize(
    ("norm", "sizes"), [(nn.LayerNorm, [4]), (nn.GroupNorm, [2, 4])]
)
def test_as_cuda_backwards_of_norms_may_mix_dtypes(norm, sizes):
    with record(as_device="cuda"), torch.autocast("cuda", torch.float16):
        layer = norm(*sizes)
        layer(nn.Linear(4, 4)(torch.ones(3, 4))).sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_a_small_call_is_refused_without_a_child(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with record(as_device="cpu"), pytest.raises(RuntimeError, match="same dtype"):
        REFUSED["input of another dtype"]()


def test_an_operator_that_reads_past_what_it_is_given_is_never_asked(monkeypatch):
    asked = []

    def ask(_, func, *__, **___):
        asked.append(str(func))
        return oracle.Verdict.ACCEPTED

    monkeypatch.setattr(oracle.Oracle, "ask", ask)
    with record(as_device="cpu", cache=False):
        nn.LSTM(3, 4)(torch.ones(2, 1, 3))
    assert asked
    assert not [name for name in asked if "mkldnn_rnn_layer" in name]


@pytest.mark.parametrize("n_channels", [1, 5])
def test_a_batch_norm_of_too_few_channels_ends_no_process(n_channels, monkeypatch):
    asked, ask = [], oracle.OracleQuestion.ask

    def note(question, seen, *, is_unsafe):
        asked.append(is_unsafe)
        return ask(question, seen, is_unsafe=is_unsafe)

    monkeypatch.setattr(oracle.OracleQuestion, "ask", note)
    monkeypatch.setattr(cpu_refusals, "ask_cpu", pytest.fail)  # in this process
    with record(as_device="cpu", cache=False), suppress(RuntimeError):
        few = torch.ones(n_channels)
        torch.native_batch_norm(torch.ones(5, 6, 5), *4 * [few], True, 0.5, 0.6)
    assert set(asked) == {True}


REFUSED_FACTORIES = {
    "a number": lambda *size: torch.full(size, 300, dtype=torch.uint8),
    "a number of itself": lambda *_: torch.scalar_tensor(300, dtype=torch.uint8),
    "a number like another": lambda *size: torch.full_like(bytes_of(size), 300),
    "a new number": lambda *size: bytes_of(size).new_full(size, 300),
    "a range of truths": lambda *size: torch.arange(size[0], dtype=torch.bool),
    "chances in integers": lambda *size: torch.rand(size, dtype=torch.long),
    "chances like integers": lambda *size: torch.rand_like(bytes_of(size)),
    "large integers": lambda *size: torch.randint(0, 300, size, dtype=torch.uint8),
    "integers from somewhere": lambda *size: bytes_of(size).random_(7, 300),
    "no range": lambda *size: torch.empty(size).uniform_(2, 1),
    "no chance": lambda *size: torch.empty(size).bernoulli_(2.0),
}
TAKEN_FACTORIES = {
    "a number": lambda *size: torch.full(size, 3, dtype=torch.uint8),
    "a range": lambda *size: torch.arange(size[0]),
    "a large range": lambda *_: torch.arange(10**11),
    "integers": lambda *size: torch.randint(0, 3, size),
    "chances": lambda *size: torch.empty(size).uniform_(1, 2),
}


def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("size", [(3, 2), (3000, 64)])
@pytest.mark.parametrize("name", REFUSED_FACTORIES)
def test_it_is_refused_in_the_words_of_the_cpu(name, size):
    assert_refused_alike(lambda: REFUSED_FACTORIES[name](*size), as_device="cpu")


@pytest.mark.parametrize("size", [(3, 2), (3000, 64), (300_000, 300_000)])
@pytest.mark.parametrize("name", TAKEN_FACTORIES)
def test_what_it_makes_is_taken_at_any_size(name, size):
    with record(as_device="cpu"):
        assert TAKEN_FACTORIES[name](*size).is_meta


@pytest.mark.parametrize("make", [torch.rand, torch.zeros, torch.randperm])
def test_pinned_memory_needs_no_accelerator(make):
    with record(as_device="cpu"):
        assert make(3, pin_memory=True).shape == (3,)


GRADIENT_MODES = {
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def call_layer(mode, is_trained):
    layer = nn.Linear(3, 4).requires_grad_(is_trained)
    across = torch.ones(5, 2, 3, dtype=torch.double).transpose(0, 1)
    with mode():
        layer(across)


def attend(mode, is_trained):
    layer = nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_(is_trained)
    given = torch.ones(2, 3, 8, dtype=torch.double)
    with mode():
        layer(given, given, given)


@pytest.mark.parametrize("mode", GRADIENT_MODES)
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("run", [call_layer, attend])
def test_a_dtype_is_refused_in_the_words_of_the_cpu(run, is_trained, mode):
    call = partial(run, GRADIENT_MODES[mode], is_trained)
    assert_refused_alike(call, as_device="cpu")


def classes(*shape):
    return torch.zeros(shape, dtype=torch.long)


def unpool():
    values = torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last)
    return F.max_unpool2d(values, classes(1, 3, 2, 2), 2)


RETURNING = {
    "a loss of one": lambda: F.multi_margin_loss(
        torch.rand(4), classes(), reduction="none"
    ),
    "what was pooled": unpool,
}


@pytest.mark.parametrize("name", RETURNING)
def test_it_has_the_shape_and_the_strides_of_the_cpu(name):
    wanted = RETURNING[name]()
    with record(as_device="cpu"):
        met = [RETURNING[name](), RETURNING[name]()]  # run, then a cache hit
    for tensor in met:
        assert (tensor.shape, tensor.stride()) == (wanted.shape, wanted.stride())


CAUGHT = {
    "refused by the CPU alone": lambda: torch.ones(2, 2) @ torch.ones(2, 2).half(),
    "reworded": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    "a function reworded": lambda: nn.Linear(3, 4)(torch.ones(2, 5)),
    "for a value": lambda: functional.embedding(torch.tensor([1, 7]), torch.ones(4, 3)),
    "in place": lambda: torch.ones(2).add_(torch.ones(3)),
    "a view": lambda: torch.ones(6).view(4),
    "where a value is read": lambda: torch.multinomial(torch.zeros(3), 2).tolist(),
}


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("call", CAUGHT.values(), ids=CAUGHT)
def test_what_lived_where_a_call_was_refused_goes_with_it(call, cache):
    def catch():
        kept = nn.Identity()
        try:
            call()
        except (RuntimeError, IndexError):
            return weakref.ref(kept)

    gc.disable()
    try:
        with record(cache=cache):
            assert [catch()() for _ in range(2)] == [None, None]
    finally:
        gc.enable()
