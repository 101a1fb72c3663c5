"""Tensors of values that are made inside of ``torch.func``'s transforms."""

import numpy as np
import pytest
import torch
from torch.func import functionalize, grad, hessian, jacrev, jvp, vjp, vmap

from meta_magic import record

TRANSFORMS = {
    "grad": lambda f, x: grad(lambda x: (x * f(x)).sum())(x),
    "grad of grad": lambda f, x: grad(lambda x: grad(lambda x: f(x).sum())(x).sum())(x),
    "hessian": lambda f, x: hessian(lambda x: (x * f(x)).sum())(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(2),))[1],
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(2))[0],
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x + 1])),
    "vmap of grad": lambda f, x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, x])),
    "functionalize": lambda f, x: functionalize(f)(x),
}
MADE = {
    "tensor": lambda x: x * x * torch.tensor([1.0, 2.0]),
    "a number": lambda x: x * x * torch.tensor(3.0),
    "its device": lambda x: x * x * torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: x * x * torch.as_tensor([1.0, 2.0]),
    "an array": lambda x: x * x * torch.as_tensor(np.float32([1, 2])),
    "from_numpy": lambda x: x * x * torch.from_numpy(np.float32([1, 2])),
    "new_tensor": lambda x: x * x * x.new_tensor([1.0, 2.0]),
    "FloatTensor": lambda x: x * x * torch.FloatTensor([1.0, 2.0]),
    "an index": lambda x: (x * x)[[1, 0]] * x,
    "what is read": lambda x: x * x * torch.tensor([1.0, 2.0]).sum().item(),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_values_inside_of_a_transform_are_those_of_the_cpu(transform, made):
    def run():
        x = torch.tensor([5.0, 7.0])
        return TRANSFORMS[transform](MADE[made], x).tolist()

    with record():
        values = run()
    assert values == run()


@pytest.mark.parametrize("transform", [*TRANSFORMS][:-1])  # functionalize refuses
def test_a_list_with_a_tensor_is_of_its_number_inside_of_a_transform(transform):
    def made(x):
        return x * x * torch.tensor([torch.tensor(3.0), 2])

    def run():
        return TRANSFORMS[transform](made, torch.tensor([5.0, 7.0])).tolist()

    with record():
        values = run()
    assert values == run()


@pytest.mark.parametrize("transform", ["grad", "hessian", "jvp"])
def test_a_list_of_what_a_transform_follows_is_of_its_numbers(transform):
    def run():
        x = torch.tensor([5.0, 7.0])
        made = TRANSFORMS[transform](lambda x: x * torch.tensor([[*x], [1.0, x[0]]]), x)
        return made.tolist()

    with record():
        values = run()
    assert values == run()


def test_what_is_made_inside_of_a_transform_can_be_written_by_what_it_follows():
    def run():
        return grad(lambda x: torch.tensor([1.0, 2.0]).add_(x).pow(2).sum())(
            torch.tensor([5.0, 7.0])
        ).tolist()

    with record():
        values = run()
    assert values == run()


def test_a_tensor_of_values_is_the_operators_inside_of_a_transform_that_it_is_outside():
    def multiply(x):
        return x * torch.tensor([1.0, 2.0])

    with record() as within:
        vmap(multiply)(torch.ones(3, 2))
    with record() as outside:
        multiply(torch.ones(3, 2))
    assert [call.op for call in within.ops] == [call.op for call in outside.ops]
