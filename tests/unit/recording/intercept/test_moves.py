"""``.to`` and its like: what moves stays on meta, and is planned to lie there."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.replaying.replays import replay

CUDA = torch.device("cuda", 0)


def test_a_tensor_says_the_device_that_was_named():
    with record():
        x = torch.ones(2, device="cuda")
        assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (CUDA, True, False, 0)
        assert x.type() == "torch.cuda.FloatTensor"
        assert x.is_meta


def test_a_move_is_a_copy_that_knows_where_from_and_where_to():
    with record() as trace:
        torch.ones(2, device="cpu").to("cuda:1", torch.half)
    move = trace.ops[-1]
    assert move.op == "aten._to_copy.default"
    assert move.inputs[0].place == torch.device("cpu")
    assert move.outputs[0].place == torch.device("cuda", 1)
    assert move.outputs[0].dtype == torch.half


def test_a_module_that_moves_keeps_its_parameters():
    with record():
        model = nn.Linear(3, 2)
        weight = model.weight
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model.to("cuda")
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        assert model.weight is weight
        assert weight.device == weight.grad.device == CUDA


def test_gradients_go_back_to_where_the_tensor_came_from():
    with record() as trace:
        one, two = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 4).to("cuda:1")
        two(one(torch.ones(2, 4, device="cuda:0")).to("cuda:1")).sum().backward()
        assert one.weight.grad.device == torch.device("cuda", 0)
        assert two.weight.grad.device == torch.device("cuda", 1)
    copies = [call for call in trace.ops if call.op == "aten._to_copy.default"]
    back = copies[-1]
    assert back.phase == "backward"
    assert back.inputs[0].place == torch.device("cuda", 1)
    assert back.outputs[0].place == torch.device("cuda", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_through_a_move_is_that_of_the_cpu(dtype):
    def train(device):
        torch.manual_seed(0)
        leaf = torch.randn(3, requires_grad=True)
        (leaf.to(device, dtype) ** 3).sum().backward()
        return leaf.grad

    with record() as trace:
        grad = train("cuda")
    assert torch.equal(replay(trace, grad)[0], train("cpu"))


def test_a_place_lasts_to_the_next_recording():
    with record():
        model = nn.Linear(3, 2, device="cuda:1")
    with record():
        assert model.weight.device == torch.device("cuda", 1)
        made = nn.functional.linear(torch.ones(3, device="cuda:1"), model.weight)
        assert made.device == torch.device("cuda", 1)


def test_a_device_beyond_the_planned_ones_is_refused():
    refused = pytest.raises(RuntimeError, match="invalid device ordinal")
    with refused, record(as_device="cuda:8"):
        torch.ones(2, device="cuda:99")


def test_what_a_named_device_means_is_plan_or_real():
    with pytest.raises(ValueError, match="named is one of plan, real, not 'fake'"):
        record(named="fake")


NUMBERED = {
    "to": lambda n: torch.ones(2).to(n),
    "to, by name": lambda n: torch.ones(2).to(device=n, dtype=torch.half),
    "a module": lambda n: nn.LSTM(2, 2).to(n)._flat_weights[0],
    "a module, by name": lambda n: nn.Linear(2, 2).to(device=n).weight,
    "a factory": lambda n: torch.ones(2, device=n),
    "a likeness": lambda n: torch.zeros_like(torch.ones(2), device=n),
    "new": lambda n: torch.ones(2).new_zeros(2, device=n),
    "values": lambda n: torch.tensor([1.0], device=n),
    "a layer": lambda n: nn.Linear(2, 2, device=n).weight,
    "to_empty": lambda n: nn.Linear(2, 2).to_empty(device=n).weight,
    "a device": lambda n: torch.ones(2, device=torch.device(n)),
}


@pytest.mark.parametrize("make", NUMBERED.values(), ids=NUMBERED)
@pytest.mark.parametrize("as_device", [None, "cuda:2"])
def test_a_number_is_the_gpu_of_that_number(make, as_device):
    with record(as_device=as_device):
        assert make(1).device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    "change",
    [lambda t: t.clone(), lambda t: t * 2, lambda t: nn.functional.pad(t, (0, 1))],
)
def test_to_empty_replaces_a_parameter_that_is_computed_on_meta(change):
    def build():
        with torch.device("meta"):
            model = nn.Linear(2, 2)
            model.bias.data = change(model.bias.data)
            model.tied = nn.Linear(2, 2)
            model.tied.bias = model.bias
        before = model.bias
        model.to_empty(device="cpu")
        return model.bias is before, model.bias is model.tied.bias

    expected = build()
    with record():
        assert build() == expected == (False, False)
