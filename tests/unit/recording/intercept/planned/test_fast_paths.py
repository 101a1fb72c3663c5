"""Attention in eval mode takes the path that it takes on the CPU."""

import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from meta_magic import record
from tests.unit.eager import Names

FAST = ("aten._transformer_encoder_layer_fwd", "aten._native_multi_head_attention")
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
CAUSAL = torch.ones(5, 5).triu(1).bool()


def layer(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()


def encoder(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer(), 2, **options).eval()


def attention(**options):
    return nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()


def attend(*sizes, module=attention, **options):
    x = torch.randn(*(sizes or (2, 5, 8)))
    return module()(x, x, x, **options)


def run(*sizes, module=layer, **options):
    return module()(torch.randn(*(sizes or (2, 5, 8))), **options)


def run_within(context):
    with context:
        return run()


def hooked():
    made = layer()
    made.linear1.register_forward_hook(lambda *_: None)
    return made


FAST_CALLS = {
    "a layer": run,
    "a norm first": lambda: run(module=lambda: layer(norm_first=True)),
    "half": lambda: layer().half()(torch.randn(2, 5, 8).half()),
    "no batch": lambda: run(0, 5, 8),
    "a transposed batch": lambda: layer()(torch.randn(5, 2, 8).transpose(0, 1)),
    "both": lambda: run(src_mask=CAUSAL, src_key_padding_mask=PADDED),
    "an encoder": lambda: run(module=encoder),
    "an encoder that nests nothing": lambda: run(
        module=lambda: encoder(enable_nested_tensor=False), src_key_padding_mask=PADDED
    ),
    "attention of a layer with a hook": lambda: run(module=hooked),
    "autocast": lambda: run_within(torch.autocast("cpu", torch.bfloat16)),
    "padding in front": lambda: run(
        module=encoder, src_key_padding_mask=PADDED.flip(1)
    ),
    "attention": attend,
    "no words": lambda: attend(2, 0, 8),
    "weights of each head": lambda: attend(average_attn_weights=False),
    "padded keys": lambda: attend(key_padding_mask=PADDED),
    "a mask for each head": lambda: attend(attn_mask=CAUSAL.expand(4, 5, 5)),
}


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    pass


def run_slowly():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return run()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


SLOW_CALLS = {
    "training": lambda: run(module=lambda: layer().train()),
    "no bias": lambda: run(module=lambda: layer(bias=False)),
    "gradients": lambda: run_within(torch.enable_grad()),
    "a mode": lambda: run_within(Watching()),
    "a device": lambda: run_within(torch.device("cpu")),
    "a subclass": lambda: layer()(torch.randn(2, 5, 8).as_subclass(Named)),
    "turned off": run_slowly,
    "queries of their own": lambda: attention()(
        torch.ones(2, 5, 8), *[torch.ones(2, 5, 8)] * 2
    ),
}


def tensors(returned):
    several = returned if isinstance(returned, tuple) else (returned,)
    return [tensor for tensor in several if tensor is not None]


def describe(returned):
    return [(t.shape, t.stride(), t.dtype, t.tolist()) for t in tensors(returned)]


def compare(call):
    """Return what is described of a real run and a recorded one, and their paths."""
    torch.manual_seed(3)
    with torch.no_grad(), Names() as names:
        wanted = call()
    wanted = describe(wanted), [op for op in names.ops if op.startswith(FAST)]
    torch.manual_seed(3)
    with torch.no_grad(), record(as_device="cpu") as trace:
        met = describe(call())
    return (met, [c.op for c in trace.ops if c.op.startswith(FAST)]), wanted, trace


@pytest.mark.parametrize("name", FAST_CALLS)
def test_a_fast_path_is_taken_and_its_values_are_those_of_the_cpu(name):
    met, wanted, _ = compare(FAST_CALLS[name])
    assert met == wanted
    assert wanted[1]


@pytest.mark.parametrize("name", SLOW_CALLS)
def test_a_fast_path_is_left_where_it_is_on_the_cpu(name):
    met, wanted, _ = compare(SLOW_CALLS[name])
    assert met == wanted
    assert not wanted[1]


WRONG = {
    "a width": lambda: run(2, 5, 9),
    "another dtype": lambda: layer()(torch.randn(2, 5, 8).double()),
    "a padding": lambda: run(src_key_padding_mask=PADDED[:, 1:]),
    "a mask": lambda: run(src_mask=torch.zeros(4, 4)),
    "a part": lambda: run(module=lambda: with_part("linear1", nn.Linear(9, 16))),
    "a part's dtype": lambda: run(
        module=lambda: with_part("linear2", nn.Linear(16, 8).double())
    ),
    "a norm": lambda: run(module=lambda: with_part("norm1", nn.LayerNorm(9))),
    "a large width": lambda: attend(64, 512, 1024),
}


def with_part(name, part):
    made = layer()
    setattr(made, name, part)
    return made


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_as_on_the_cpu(name):
    with torch.no_grad():
        with pytest.raises(Exception) as wanted:  # noqa: PT011  of any type
            WRONG[name]()
        with record(as_device="cpu"), pytest.raises(wanted.type) as met:
            WRONG[name]()
    assert str(met.value) == str(wanted.value)


@pytest.mark.parametrize("mask", [PADDED, PADDED.to("meta")])
def test_a_padded_encoder_says_that_the_cpu_nests_tensors(mask):
    with torch.no_grad(), record(as_device="cpu") as trace:
        assert run(module=encoder, src_key_padding_mask=mask).shape == (2, 5, 8)
    assert "enable_nested_tensor=False" in trace.notes[0].text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_a_named_device_takes_it_too(device):
    with torch.no_grad(), record(as_device=device) as trace:
        layer().to(device)(torch.randn(2, 5, 8, device=device))
    assert trace.ops[-1].op.startswith(FAST)


@pytest.mark.parametrize("call", [run, attend])
def test_a_fast_path_computes_as_much_as_the_path_that_it_stands_for(call):
    flops = []
    for is_fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(is_fast)
        with torch.no_grad(), record(as_device="cpu") as trace:
            call()
        flops.append(trace.flops)
    torch.backends.mha.set_fastpath_enabled(True)
    assert flops[0] == flops[1]
