"""Tensors of other layouts, and packed sequences."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.masked import masked_tensor
from torch.nn import functional
from torch.nn.utils import rnn

from meta_magic import MetaMagicError, record
from tests.unit.eager import Names
from tests.unit.recording.intercept.data_of_cells import notes_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of", "ignore:Sparse invariant checks", "ignore::UserWarning"
)


PLAIN = {
    "complex": lambda: torch.ones(3, dtype=torch.complex64).conj() * 2j,
    "masked": lambda: masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
    "jagged": lambda: nested(torch.ones(5, 4)).values(),
    "jagged linear": lambda: nn.Linear(4, 3)(nested(torch.ones(5, 4))).values(),
    "jagged padded": lambda: nested(torch.ones(5, 4)).to_padded_tensor(0.0, (2, 3, 4)),
    "int8 product": lambda: torch._int_mm(
        *[torch.ones(32, 32, dtype=torch.int8).t()] * 2
    ),
    "custom": lambda: torch.ops.mm_test.known(torch.ones(3)),
}


def nested(values):
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))


@pytest.fixture(scope="module", autouse=True)
def _operators():
    library = torch.library.Library("mm_test", "DEF")
    for name in ("known", "unknown"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x[:2].double(), "CPU")
    library.impl("known", lambda x: x.new_empty(2, dtype=torch.float64), "Meta")
    yield
    library._destroy()


@pytest.mark.parametrize("name", PLAIN)
def test_what_meta_knows_has_the_metadata_of_the_cpu(name):
    real = PLAIN[name]()
    with record() as trace:
        made = PLAIN[name]()
    assert made.device.type == "meta"
    assert (made.shape, made.dtype, made.layout) == (
        real.shape,
        real.dtype,
        real.layout,
    )
    assert len(trace.ops) > 0


REFUSED = {
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
        "aten._nested_tensor_from_tensor_list.default (nested)",
    ),
    "quantized": (
        lambda: torch.quantize_per_channel(
            torch.ones(3, 4), torch.ones(3), torch.zeros(3), 0, torch.qint8
        ),
        "aten.quantize_per_channel.default (quantized)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_meta_cannot_do_is_refused_by_name_and_the_cpu_can(name):
    program, op = REFUSED[name]
    with pytest.raises((RuntimeError, NotImplementedError)) as caught, record():
        program()
    (note,) = caught.value.__notes__
    assert note.startswith(f"meta_magic: on meta torch has no {op}. To go on, compute")
    with record() as trace, torch.device("cpu"):
        assert not program().is_meta
    names = [call.op for call in trace.ops]
    assert op.split(" ")[0] in names or "a nested tensor" in trace.notes[-1].text


def test_an_operator_without_a_kernel_on_meta_is_named():
    with pytest.raises(NotImplementedError) as caught, record():
        torch.ops.mm_test.unknown(torch.empty(3))  # nor has it values to run on
    (note,) = caught.value.__notes__
    assert note == (
        "meta_magic: mm_test.unknown.default has no kernel on meta, so its result is "
        "not known. To go on, compute it under `with torch.device('cpu'):`, or write "
        "one (see torch.library.register_fake)."
    )


def test_a_quantized_tensor_that_meta_would_make_wrong_is_refused():
    # Torch's own kernel returns float32 on meta, qint8 on the CPU.
    with (
        pytest.raises(MetaMagicError, match=r"torch\.float32 on meta, not of torch\.q"),
        record(),
    ):
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with record() as trace, torch.device("cpu"):
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()
    assert trace.ops[1].outputs[0].dtype == torch.qint8


def test_attention_of_nested_tensors_is_refused_by_name():
    with pytest.raises(MetaMagicError, match="of nested tensors cannot run"), record():
        q = nested(torch.ones(5, 8)).unflatten(-1, [2, 4]).transpose(1, 2)
        functional.scaled_dot_product_attention(q, q, q)


# Packed sequences: their lengths are values, their batch sizes lie on the CPU


LENGTHS = {
    "a tensor": torch.tensor,
    "on the CPU": lambda values: torch.tensor(values).cpu(),
    "made on the CPU": lambda values: torch.tensor(values, device="cpu"),
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
