"""Packed sequences: their lengths are values, their batch sizes lie on the CPU."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from meta_magic import record
from tests.unit.eager import Names
from tests.unit.recording.intercept.data_of_cells import notes_of

LENGTHS = {
    "a tensor": torch.tensor,
    "on the CPU": lambda values: torch.tensor(values).cpu(),
    "a list": list,
    "made on the CPU": lambda values: torch.tensor(values, device="cpu"),
    "LongTensor": torch.LongTensor,
}
LAYERS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "ReLU": partial(nn.RNN, nonlinearity="relu"),
    "projected": partial(nn.LSTM, proj_size=3),
    "both ways": partial(nn.LSTM, bidirectional=True),
    "both ways, gated": partial(nn.GRU, bidirectional=True, bias=False),
}


def run(lengths, layer=nn.LSTM, *, is_sorted=True, device=None):
    """Return what a layer gives of sequences that are packed, and their lengths."""
    torch.manual_seed(0)
    data = torch.randn(3, 5, 4).to(device) if device else torch.randn(3, 5, 4)
    model = layer(4, 8, batch_first=True, num_layers=2)
    model = model.to(device) if device else model
    packed = rnn.pack_padded_sequence(
        data, lengths, batch_first=True, enforce_sorted=is_sorted
    )
    out, hidden = model(packed)
    padded, lengths = rnn.pad_packed_sequence(out, batch_first=True)
    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    return padded, hidden, lengths


def are_equal(made, wanted):
    """Compare values, to the bit."""
    return [t.tolist() for t in made] == [t.tolist() for t in wanted]


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_packed_sequences_run_through_a_recurrent_layer(name, layer):
    wanted = run(LENGTHS[name]([5, 3, 2]), LAYERS[layer])
    with record() as trace:
        made = run(LENGTHS[name]([5, 3, 2]), LAYERS[layer])
        assert all(tensor.is_meta for tensor in made)
        assert are_equal(made, wanted)
    assert "factory" not in notes_of(trace)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_in_any_order_are_sorted(name):
    wanted = run(LENGTHS[name]([2, 5, 3]), is_sorted=False)
    with record():
        made = run(LENGTHS[name]([2, 5, 3]), is_sorted=False)
        assert are_equal(made, wanted)


def test_lengths_on_a_gpu_are_refused_as_torch_does_it():
    with record(), pytest.raises(RuntimeError, match="got 1D cuda Long tensor"):
        run(torch.tensor([5, 3, 2], device="cuda"), device="cuda")


MANY_LENGTHS = {"shrinking": [5, 3, 3], "equal": [4, 4], "one": [3], "any": [2, 5, 3]}


TRAINED = [
    (name, lengths)
    for i, name in enumerate(LAYERS)
    for j, lengths in enumerate(MANY_LENGTHS)
    if (i + j) % 3 == 0
]


@pytest.mark.parametrize(("name", "lengths"), TRAINED)
def test_a_packed_layer_runs_the_operators_of_the_cpu_forward_and_back(name, lengths):
    counts = MANY_LENGTHS[lengths]

    def train():
        torch.manual_seed(0)
        model = LAYERS[name](4, 8, num_layers=2, batch_first=True, dropout=0.5)
        data = torch.randn(len(counts), max(counts), 4)
        packed = rnn.pack_padded_sequence(data, counts, True, lengths != "any")
        output, states = model(packed)
        output.data.sum().backward()
        many = states if isinstance(states, tuple) else (states,)
        return [*many, *(parameter.grad for parameter in model.parameters())]

    with Names() as names:
        wanted = train()
    with record() as trace:
        made = train()
        assert are_equal(made, wanted)
    real = [*zip(names.ops, names.shapes, strict=True)]
    met = [(call.op, [t.shape for t in call.outputs]) for call in trace.ops]
    assert drop_copies(met)[: len(drop_copies(real))] == drop_copies(real)


def drop_copies(calls):
    """Leave out how the numbers of a list are made a tensor."""
    copies = ("aten.lift_fresh.default", "aten._to_copy.default")
    return [call for call in calls if call[0] not in copies]
