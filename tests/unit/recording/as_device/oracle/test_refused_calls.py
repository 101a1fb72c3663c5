"""Calls that the CPU refuses, and those that it takes."""

import os
import resource
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import (
    cross_entropy,
    ctc_loss,
    embedding_bag,
    linear,
    multilabel_margin_loss,
    pad,
    scaled_dot_product_attention,
)

from meta_magic import record
from meta_magic.recording.as_device.oracle import cpu_refusals, oracle

HUGE = 2**20


class Named(torch.Tensor):
    """A tensor like others."""


def weights(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


REFUSED = {
    "input of another dtype": lambda: nn.Linear(3, 4)(torch.ones(2, 3).double()),
    "two dtypes": lambda: torch.ones(2, 2) @ torch.ones(2, 2).half(),
    "classes in int32": lambda: cross_entropy(
        torch.ones(2, 3), torch.zeros(2, dtype=torch.int32)
    ),
    "input that lies across": lambda: nn.Linear(3, 4)(
        torch.ones(2, 5, 3, dtype=torch.double).transpose(0, 1)
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
    "a differentiated function": lambda: torch.func.grad(linear)(
        torch.ones(2, 3), torch.ones(4, 3).double()
    ),
    "a subclass": lambda: linear(
        torch.ones(2, 3).as_subclass(Named), torch.ones(4, 3).double()
    ),
    "sizes": lambda: nn.Linear(3, 4)(torch.ones(2, 4)),
    "channels": lambda: nn.Conv2d(3, 4, 3)(torch.ones(1, 4, 8, 8)),
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
    "pivots' dtype": lambda: torch.linalg.ldl_solve(
        torch.ones(2, 2), torch.ones(2), torch.ones(2, 1)
    ),
    "a vector of equations": lambda: torch.geqrf(torch.ones(3)),
    "weights of a bag": lambda: embedding_bag(
        torch.tensor([0, 1]),
        torch.ones(3, 4),
        torch.tensor([0]),
        mode="sum",
        per_sample_weights=torch.ones(2).double(),
    ),
    "classes of a number": lambda: multilabel_margin_loss(
        torch.tensor(1.0), torch.tensor(0, dtype=torch.int32)
    ),
    "attention of two dtypes": lambda: scaled_dot_product_attention(
        torch.ones(1, 2, 3, 4).bfloat16(), *torch.ones(2, 1, 2, 3, 4)
    ),
    "attention with a mask of integers": lambda: scaled_dot_product_attention(
        *torch.ones(3, 1, 2, 3, 4), torch.ones(3, 3, dtype=torch.long)
    ),
    "attention with a mask in a row": lambda: scaled_dot_product_attention(
        *torch.ones(3, 1, 2, 3, 4), torch.ones(3)
    ),
    "attention of vectors": lambda: scaled_dot_product_attention(*torch.ones(3, 4)),
    "a view past its storage": lambda: torch.ones(3).as_strided((2, 2), (1, 2)),
    "a view past a storage that is smaller": lambda: [
        torch.ones(n)[:3].as_strided((2, 2), (1, 2)) for n in (4, 3)
    ],
    "draws of integers": lambda: torch.ones(2, dtype=torch.long).exponential_(),
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
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        REFUSED[name]()
    with record(as_device="cpu"), pytest.raises(wanted.type) as met:
        REFUSED[name]()
    assert str(met.value) == str(wanted.value)


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


def test_a_large_call_that_is_right_takes_no_memory():
    before = peak_nbytes()
    with record(as_device="cpu"):
        (nn.Linear(HUGE, HUGE)(weights(8, HUGE)).relu() + 1).sum().backward()
    assert peak_nbytes() - before < 2**27


def test_few_elements_of_large_memory_take_none():
    before = peak_nbytes()
    with record(as_device="cpu"):
        _ = weights(2**40)[-8:] + 1
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


def test_parts_of_one_memory_that_lie_far_apart_are_taken():
    with record(as_device="cpu"):
        base = torch.zeros(10**6)
        met = base[:10] + base[-10:]
        met = torch.add(base[:10], base[20:30], out=base[500_000:500_010])
    assert met.shape == (10,)


def test_what_is_refused_in_place_is_not_written():
    with record(as_device="cpu") as trace:
        kept = torch.ones(3, dtype=torch.long)
        with pytest.raises(RuntimeError, match="can't be cast"):
            kept.add_(0.5)
    assert "aten.add_.Scalar" not in [op.op for op in trace.ops]


def test_an_out_that_is_refused_keeps_its_size():
    with record(as_device="cpu"):
        out = torch.empty(0, dtype=torch.long)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(torch.ones(3), torch.ones(3), out=out)
        assert out.shape == (0,)


def test_asking_leaves_the_random_state_as_it_is():
    before = torch.get_rng_state()
    given = (torch.empty(2, 3, device="meta"),)
    answer = oracle.Oracle().ask(torch.ops.aten.exponential_.default, given, {})
    assert answer is oracle.Verdict.ACCEPTED
    assert torch.equal(torch.get_rng_state(), before)


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
        norm(*sizes)(nn.Linear(4, 4)(torch.ones(3, 4))).sum().backward()


def test_where_no_child_can_be_made_a_large_call_is_as_on_meta(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with record(as_device="cpu", cache=False):
        LARGE["input of another dtype"]()
    with record(as_device="cpu"), pytest.raises(RuntimeError, match="reduction dim"):
        LARGE["sizes"]()


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
    asked, ask = [], oracle.Question.ask

    def note(question, seen, *, is_unsafe):
        asked.append(is_unsafe)
        return ask(question, seen, is_unsafe=is_unsafe)

    monkeypatch.setattr(oracle.Question, "ask", note)
    monkeypatch.setattr(cpu_refusals, "ask_cpu", pytest.fail)  # in this process
    with record(as_device="cpu", cache=False), suppress(RuntimeError):
        few = torch.ones(n_channels)
        torch.native_batch_norm(torch.ones(5, 6, 5), *4 * [few], True, 0.5, 0.6)
    assert set(asked) == {True}
