"""Each private name of torch that we stand on is there and does what we need of it."""

import pytest
import torch

from meta_magic.recording import torch_private


@pytest.mark.parametrize("name", torch_private.__all__)
def test_a_private_name_of_torch_is_where_it_was(name):
    assert hasattr(torch_private, name)


def test_a_backward_node_has_the_number_that_was_next_before_its_forward():
    x = torch.ones(2, requires_grad=True)
    number = torch_private.next_sequence_number()
    y = x * 2
    assert y.grad_fn._sequence_nr() == number


def test_there_is_a_current_node_in_backward_alone():
    met = []
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda _: met.append(torch_private.current_autograd_node()))
    y.backward()
    assert torch_private.current_autograd_node() is None
    assert met


def test_the_flags_that_a_dispatch_mode_sets_exist():
    from meta_magic.recording.guard import FLAGS

    assert [
        name for name in FLAGS if not hasattr(torch_private.python_dispatch, name)
    ] == []


def test_the_default_device_is_read_from_a_device_context_on_the_stack():
    mode = torch_private.DeviceContext("meta")
    torch_private.push_function_mode(mode)
    try:
        assert torch.get_default_device() == torch.device("meta")
    finally:
        torch_private.pop_function_mode()


def test_no_forward_mode_level_is_open():
    assert torch.autograd.forward_ad._current_level == -1
