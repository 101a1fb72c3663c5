"""Recurrent layers on meta, beside those of the CPU."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import Names, assert_same_tensor

MANY = {"num_layers": 2, "dropout": 0.4, "bidirectional": True, "batch_first": True}
LAYERS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm, many": lambda: nn.LSTM(3, 4, **MANY),
    "lstm, projected": lambda: nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True),
    "lstm, bfloat16": lambda: nn.LSTM(3, 4, dtype=torch.bfloat16, **MANY),
    "lstm, float16": lambda: nn.LSTM(3, 4, dtype=torch.float16),
    "gru, many": lambda: nn.GRU(3, 4, **MANY),
    "tanh, many": lambda: nn.RNN(3, 4, **MANY),
    "relu without biases": lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
}


def run(name, *, is_training=True):
    """Return what a layer returns, and what training it leaves."""
    layer = LAYERS[name]()
    a = torch.randn(2, 3, 3, dtype=layer.weight_ih_l0.dtype)
    with torch.set_grad_enabled(is_training):
        output, state = layer(a)
    if is_training:
        output.square().sum().backward()
    states = state if isinstance(state, tuple) else (state,)
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    holder = nn.Module()
    for index, tensor in enumerate([output, *states, *gradients, torch.rand(2)]):
        holder.register_buffer(f"tensor{index}", tensor.detach())
    return holder


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_gradients_and_operators_are_those_of_the_cpu(name, is_training):
    torch.manual_seed(1)
    with Names() as names:
        real = run(name, is_training=is_training)
    torch.manual_seed(1)
    with record(as_device="cpu") as trace:
        made = run(name, is_training=is_training)
    assert materialize(made).notes == ()
    for key, tensor in real.named_buffers():
        assert_same_tensor(made.get_buffer(key), tensor, key)
    skipped = "detach", "lift"
    ops, wanted = (
        [op for op in ops if not any(s in op for s in skipped)]
        for ops in ([op.op for op in trace.ops], names.ops)
    )
    assert ops == wanted


def test_as_cuda_it_is_left_to_torch():
    with record(as_device="cuda") as trace:
        run("lstm", is_training=False)
    assert "aten.mkldnn_rnn_layer.default" not in [op.op for op in trace.ops]


LARGE = """
import torch
from meta_magic import record

with record(as_device="cpu"):
    layer = torch.nn.LSTM(28, 128, 2, batch_first=True)
    layer(torch.randn(100, 28, 28))[0][:, -1].sum().backward()
"""


def test_a_large_layer_is_trained_without_harm_to_the_process():
    assert subprocess.run([sys.executable, "-c", LARGE], check=False).returncode == 0
