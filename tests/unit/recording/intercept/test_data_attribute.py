"""``x.data = y`` is taken on meta wherever the CPU takes it."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import MixedDeviceError, record


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
