"""Each private name of torch that we stand on is there and does what we need of it."""

import pytest
import torch

from meta_magic.torch_private import (
    attention,
    autograd,
    dispatcher,
    modes,
    modules,
    replaced,
    tensors,
)

ROOMS = (attention, autograd, dispatcher, modes, modules, replaced, tensors)
SINGLE = [n for n in replaced.__all__ if n.isupper() and n != "CAPTURABLE_DEVICES"]


@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room in ROOMS for name in room.__all__]
)
def test_a_private_name_of_torch_is_where_it_was(room, name):
    assert hasattr(room, name)


@pytest.mark.parametrize("name", SINGLE)
def test_what_is_replaced_is_there(name):
    assert callable(getattr(*getattr(replaced, name)))


def test_optimizers_say_on_which_devices_they_are_capturable():
    modules = [module.__name__ for module, _ in replaced.CAPTURABLE_DEVICES]
    assert "torch.optim.adamw" in modules or "torch.optim.adam" in modules


def test_a_backward_node_has_the_number_that_was_next_before_its_forward():
    x = torch.ones(2, requires_grad=True)
    number = autograd.next_sequence_number()
    y = x * 2
    assert autograd.sequence_number_of(y.grad_fn)() == number


def test_the_names_on_tensors_modules_and_generators_are_there():
    x = torch.zeros(2)
    layer = torch.nn.BatchNorm1d(2)
    assert tensors.address_of_storage(x.untyped_storage())
    assert tensors.address_of_generator(torch.default_generator)
    assert tensors.version_of(x.add_(1)) == 1
    assert tensors.is_view(x[0])
    assert not tensors.is_zero_tensor(x)
    assert tensors.negate_lazily(x).is_neg()
    assert tensors.n_specified(torch.eye(2).to_sparse()) == 2
    assert [*modules.parameters_of(layer)] == ["weight", "bias"]
    assert "running_mean" in modules.buffers_of(layer)
    assert modules.children_of(layer) == {}
    assert modules.names_not_persistent(layer) == set()
    assert dispatcher.schema_of(torch.ops.aten.add.Tensor).arguments[0].name == "self"


def test_there_is_a_current_node_in_backward_alone():
    met = []
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda _: met.append(autograd.current_autograd_node()))
    y.backward()
    assert autograd.current_autograd_node() is None
    assert met


def test_the_flags_that_a_dispatch_mode_sets_exist():
    assert [
        name for name in modes.FLAGS if not hasattr(modes.python_dispatch, name)
    ] == []


def test_the_default_device_is_read_from_a_device_context_on_the_stack():
    mode = modes.DeviceContext("meta")
    modes.push_function_mode(mode)
    try:
        assert torch.get_default_device() == torch.device("meta")
    finally:
        modes.pop_function_mode()


def test_no_forward_mode_level_is_open():
    assert torch.autograd.forward_ad._current_level == -1
