"""Transforms, gradient modes, optimizers and conversions give what plain meta gives."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from meta_magic.session.record import record
from tests.integration.same_as_meta import assert_same_as_plain_meta, describe


def test_vmap_over_a_function():
    assert_same_as_plain_meta(
        lambda: vmap(torch.dot)(torch.randn(5, 3), torch.randn(5, 3))
    )


def test_vmap_with_randomness():
    def program():
        noisy = vmap(lambda x: x + torch.randn(3), randomness="different")
        return noisy(torch.randn(5, 3))

    assert_same_as_plain_meta(program)


def test_grad_of_a_function():
    assert_same_as_plain_meta(lambda: grad(lambda x: x.sin().sum())(torch.randn(3)))


def test_grad_for_each_sample():
    def program():
        model = nn.Linear(4, 2)
        parameters = dict(model.named_parameters())

        def loss(values, x):
            return functional_call(model, values, (x,)).square().sum()

        return vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(6, 4))

    assert_same_as_plain_meta(program)


def test_jvp_of_a_function():
    assert_same_as_plain_meta(
        lambda: jvp(lambda x: x.tanh() @ x, (torch.randn(3),), (torch.randn(3),))
    )


@pytest.mark.parametrize("transform", [jacrev, hessian])
def test_derivatives_of_higher_order(transform):
    assert_same_as_plain_meta(lambda: transform(lambda x: (x**3).sum())(torch.randn(4)))


def test_double_backward():
    def program():
        x = torch.randn(3, requires_grad=True)
        (first,) = torch.autograd.grad(x.tanh().sum(), x, create_graph=True)
        first.square().sum().backward()
        return x, first

    assert_same_as_plain_meta(program)


def test_a_functional_call_with_other_parameters():
    def program():
        model = nn.Linear(4, 2)
        values = {"weight": torch.randn(2, 4), "bias": torch.randn(2)}
        return functional_call(model, values, (torch.randn(3, 4),))

    assert_same_as_plain_meta(program)


def test_weight_norm():
    def program():
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
        layer(torch.randn(3, 4)).sum().backward()
        return layer, list(layer.parameters())

    assert_same_as_plain_meta(program)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.no_grad, torch.enable_grad]
)
def test_gradient_modes(mode):
    def program():
        model, x = nn.Linear(4, 2), torch.randn(3, 4, requires_grad=True)
        with mode():
            y = model(x)
            return y, y[0], y.view(-1), y.detach(), y.t().contiguous(), torch.ones(2)

    assert_same_as_plain_meta(program)


def test_views_and_writes_in_inference_mode():
    def program():
        with torch.inference_mode():
            x = torch.zeros(4, 4)
            x[1:3].add_(1)
            x.t_()
        return x, x.clone()

    assert_same_as_plain_meta(program)


@pytest.mark.parametrize("shape", [(2, 3), (0,)])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_results_are_written_to_out(shape):
    def program():
        out = torch.empty(shape)
        returned = torch.add(torch.randn(2, 3), 1, out=out)
        return returned is out, out

    assert_same_as_plain_meta(program)


def test_out_of_another_dtype_is_refused_as_ever():
    assert_same_as_plain_meta(
        lambda: torch.add(torch.randn(3), 1.5, out=torch.empty(3, dtype=torch.long))
    )


def test_foreach_functions_write_their_lists():
    def program():
        tensors = [torch.zeros(2), torch.zeros(3, 4)]
        torch._foreach_add_(tensors, 1)
        return tensors, torch._foreach_mul(tensors, 2)

    assert_same_as_plain_meta(program)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_step(optimizer, foreach):
    def program():
        model = nn.Linear(4, 2)
        steps = optimizer(model.parameters(), lr=0.1, foreach=foreach)
        for _ in range(3):
            model(torch.randn(3, 4)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
            steps.step()
            steps.zero_grad()
        return model, steps.state_dict()["state"]

    assert_same_as_plain_meta(program)


def test_autocast():
    def program():
        with torch.autocast("cpu", torch.bfloat16):
            return nn.Linear(4, 2)(torch.randn(3, 4)) @ torch.randn(2, 2)

    assert_same_as_plain_meta(program)


@pytest.fixture(params=[True, False], ids=["swapped", "set"])
def _is_swapping(request):
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(request.param)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def convert(model: nn.Module) -> nn.Module:
    model(torch.empty(3, 4, device="meta")).sum().backward()
    model.zero_grad()
    return model.to(torch.float64).half().to_empty(device="meta")


@pytest.mark.usefixtures("_is_swapping")
def test_modules_are_converted_inside():
    assert_same_as_plain_meta(lambda: convert(nn.Linear(4, 2)))


@pytest.mark.usefixtures("_is_swapping")
def test_modules_are_converted_afterwards():
    with record() as trace:
        model = nn.Linear(4, 2)
        y = model(torch.randn(3, 4))
        y.sum().backward()
    del y
    model.zero_grad()
    with torch.device("meta"):
        plain = nn.Linear(4, 2)
    assert describe(convert(model)) == describe(convert(plain))
    assert {p.device.type for p in model.to_empty(device="cpu").parameters()} == {"cpu"}
    assert len(trace.ops) > 0
