"""``.to`` and its like: what moves stays on meta, and is planned to lie there."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import MixedDeviceError, record
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


def test_what_a_named_device_means_is_plan_or_real():
    with pytest.raises(ValueError, match="named is one of plan, real, not 'fake'"):
        record(named="fake")


NUMBERED = {
    "to": lambda n: torch.ones(2).to(n),
    "to, by name": lambda n: torch.ones(2).to(device=n, dtype=torch.half),
    "a module": lambda n: nn.LSTM(2, 2).to(n)._flat_weights[0],
    "a factory": lambda n: torch.ones(2, device=n),
    "a likeness": lambda n: torch.zeros_like(torch.ones(2), device=n),
    "new": lambda n: torch.ones(2).new_zeros(2, device=n),
    "values": lambda n: torch.tensor([1.0], device=n),
    "to_empty": lambda n: nn.Linear(2, 2).to_empty(device=n).weight,
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


# Real tensors that meet meta tensors and cannot be lifted; cases of torch 2.13


LEGITIMATE = {
    "a scalar": lambda real: torch.ones(2) * torch.tensor(2.0, device="cpu"),
    "zeros_like": lambda real: torch.zeros_like(torch.ones(2), device="cpu"),
    "new_zeros": lambda real: torch.ones(2).new_zeros(2, device="cpu"),
    "copy to meta": lambda real: torch.empty(3, 4).copy_(real),
    "to meta": lambda real: real.to("meta") + torch.ones(4),
    "real alone": lambda real: real @ real.T,
    "to_empty": lambda real: nn.Linear(2, 2).to_empty(device="cpu"),
}


class Marked(torch.Tensor):
    """A subclass, of which nobody knows what it stands for."""


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_is_legitimate_passes(name):
    real = torch.ones(3, 4)
    with record() as trace:
        LEGITIMATE[name](real)
    assert trace.error is None


@pytest.mark.parametrize("cache", [True, False])
def test_an_operator_that_would_return_garbage_is_an_error(cache):
    real = torch.ones(3, 4).as_subclass(Marked)
    with pytest.raises(MixedDeviceError), record(cache=cache):
        torch.mm(real, torch.ones(4, 2))


def test_the_error_names_both_tensors_and_the_way_out():
    real, layer = torch.ones(3, 4), nn.Linear(4, 2, bias=False, device="meta")
    real = real.as_subclass(Marked)
    with pytest.raises(MixedDeviceError) as caught, record():
        layer(real)
    text = str(caught.value)
    assert "aten.mm.default" in text
    assert "'real' (cpu float32 (3, 4))" in text
    assert "a view of 'layer.weight' (meta float32 (2, 4))" in text
    assert "x.to('meta')" in text


# ``x.data = y`` is taken on meta wherever the CPU takes it


class Named(torch.Tensor):
    """A class of a user's own."""


def set_data(tensor, source):
    tensor.data = source
    return tensor.is_conj(), tensor.is_neg(), type(tensor), tensor.tolist()


def of_inference_module():
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, module.parameters())
    return module[0].weight.tolist()


def of_module_that_left_inference():
    torch.manual_seed(0)
    with torch.inference_mode():
        module = nn.Linear(2, 3)
        inside = module.weight.data.is_inference()
    module.half().float()
    data = module.weight.data
    again = nn.Parameter(data)
    facts = inside, data.is_inference(), data._version, again.requires_grad
    return facts, data.add_(1).tolist()


def of_parameter_that_left_inference():
    with torch.inference_mode():
        layer = nn.Linear(2, 3)
    layer.half().float().requires_grad_(True)
    weight, facts = layer.weight, []
    asked = lambda: weight._version, weight.zero_, lambda: layer(torch.ones(2))
    for ask in asked:
        try:
            facts.append(str(ask()))
        except RuntimeError as error:
            facts.append(str(error)[:50])
    doubled = weight * 2
    return facts, weight.is_inference(), doubled.requires_grad, doubled.tolist()


def from_inference():
    with torch.inference_mode():
        source = torch.rand(3)
    return set_data(torch.zeros(2), source)


PROGRAMS = {
    "conjugated": lambda: set_data(torch.zeros(1), torch.tensor([1j, 2]).conj()),
    "negated": lambda: set_data(torch.zeros(1), torch.tensor([1j]).conj().imag),
    "to what was negated": lambda: set_data(
        torch.tensor([1j]).conj().imag, torch.ones(2)
    ),
    "of a subclass": lambda: set_data(torch.zeros(1), torch.ones(2).as_subclass(Named)),
    "inference": from_inference,
    "of a module that left inference mode": of_module_that_left_inference,
    "of a parameter that left inference mode": of_parameter_that_left_inference,
    "to parameters of inference mode": of_inference_module,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_data_of_another_kind_is_taken_with_its_values(program):
    returned = []
    for block in (contextlib.nullcontext(), record()):
        torch.manual_seed(0)
        with block:
            returned.append(program())
    assert returned[0] == returned[1]


def test_a_real_parameter_is_not_given_data_of_a_cell():
    layer = nn.Linear(3, 3)
    before = layer.weight.tolist()
    with record(), pytest.raises(MixedDeviceError, match=r"your real `layer\.weight`"):
        layer.weight.data = torch.randn(5, 3)
    assert layer.weight.tolist() == before
