"""Constructions whose values are hard to replay."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tests.conformance.construction import Build, module_of, note_in

CONSTRUCTIONS: dict[str, Build] = {}
"""Functions that build a module, by what is special about it."""

construction = note_in(CONSTRUCTIONS)


def linear_initialized_by(initialize: Callable[[Tensor], object]) -> nn.Module:
    """Return a linear layer whose weight was initialized by a function."""
    linear = nn.Linear(40, 30)
    initialize(linear.weight)
    return linear


INITIALIZERS: dict[str, Callable[[Tensor], object]] = {
    "orthogonal_": nn.init.orthogonal_,
    "trunc_normal_": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "trunc_normal_ of a narrow interval": lambda w: nn.init.trunc_normal_(
        w, 0, 1, -0.2, 0.2
    ),
    "sparse_": lambda w: nn.init.sparse_(w, 0.5),
    "xavier_normal_": nn.init.xavier_normal_,
    "kaiming_normal_": nn.init.kaiming_normal_,
    "eye_": nn.init.eye_,
}
for initializer, function in INITIALIZERS.items():
    CONSTRUCTIONS[f"nn.init.{initializer}"] = lambda function=function: (
        linear_initialized_by(function)
    )


@construction
def dirac() -> nn.Module:
    conv = nn.Conv2d(8, 8, 3)
    nn.init.dirac_(conv.weight)
    return conv


@construction
def buffers_from_numpy() -> nn.Module:
    return module_of(
        drawn=torch.from_numpy(np.random.randn(4).astype("f")),  # noqa: NPY002
        copied=torch.tensor(np.arange(6.0)),
        shared=torch.as_tensor(np.ones((2, 3), np.int32)),
        mixed=torch.tensor([1.0, 2.0, 3.0]) * torch.arange(3),
        product=torch.tensor(np.random.randn(4, 4)) @ torch.randn(4, 4).double(),  # noqa: NPY002
    )


@construction
def parameters_from_python_numbers() -> nn.Module:
    numbers = [random.random() for _ in range(3)]
    return module_of(w=nn.Parameter(torch.as_tensor(numbers)), n=torch.tensor(3))


@construction
def writes_into_slices() -> nn.Module:
    linear = nn.Linear(4, 4)
    with torch.no_grad():
        linear.weight[0] = 3.0
        linear.weight[:, 1] = torch.tensor([9.0, 8, 7, 6])
        linear.bias.data = torch.ones(4) * 2
    return linear


@construction
def sinusoidal_positions_not_persistent() -> nn.Module:
    module, table = nn.Module(), torch.zeros(10, 8)
    positions = torch.arange(10.0).unsqueeze(1)
    steps = torch.exp(torch.arange(0, 8, 2).float() * -(np.log(10000.0) / 8))
    table[:, 0::2] = torch.sin(positions * steps)
    table[:, 1::2] = torch.cos(positions * steps)
    module.register_buffer("table", table, persistent=False)
    return module


@construction
def sizes_read_from_a_linspace() -> nn.Module:
    rates = [x.item() for x in torch.linspace(0, 0.1, 4)]
    return nn.ModuleList([nn.Linear(4, 4 + int(100 * rate)) for rate in rates])


@construction
def complex_numbers() -> nn.Module:
    return nn.Linear(6, 5, dtype=torch.complex64)


@construction
def dtypes() -> nn.Module:
    return nn.Sequential(
        nn.Linear(33, 17, dtype=torch.float64),
        nn.Linear(33, 17, dtype=torch.bfloat16),
        nn.Linear(33, 17, dtype=torch.float16),
    )


@construction
def a_default_dtype() -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return nn.Linear(33, 17)
    finally:
        torch.set_default_dtype(before)


@construction
def cast_to_bfloat16_afterwards() -> nn.Module:
    return nn.Sequential(nn.Linear(33, 17), nn.LayerNorm(17)).to(torch.bfloat16)


@construction
def minus_zero_and_nan() -> nn.Module:
    return module_of(
        w=nn.Parameter(torch.tensor([0.0, -0.0, float("nan"), float("-inf")])),
        zero=-torch.zeros(3),
        root=torch.sqrt(-torch.ones(2)),
    )


@construction
def tensors_without_elements() -> nn.Module:
    return module_of(
        w=nn.Parameter(torch.empty(0, 3)), n=torch.zeros(0), s=torch.ones(())
    )


@construction
def legacy_constructors() -> nn.Module:
    return module_of(
        w=nn.Parameter(torch.Tensor(3, 4).uniform_(-1, 1)),
        longs=torch.LongTensor([1, 2, 3]),
        floats=torch.FloatTensor(2, 2).fill_(0.5),
    )


@construction
def indices_that_depend_on_values() -> nn.Module:
    values = torch.arange(6)
    return module_of(
        chosen=values[torch.tensor([5, 0, 3])],
        bias=torch.bucketize(torch.linspace(0, 1, 7), torch.tensor([0.2, 0.6])),
        mask=torch.ones(4, 4, dtype=torch.bool).tril().logical_not(),
        slopes=torch.pow(torch.tensor(0.5), torch.arange(1, 5)),
    )


@construction
def factories_like_another_tensor() -> nn.Module:
    blank = torch.empty(3)
    return module_of(
        drawn=torch.rand_like(blank),
        zeros=torch.zeros_like(blank),
        full=torch.full_like(blank, 2.0),
        new=blank.new_ones(3),
    )


@construction
def results_of_linear_algebra() -> nn.Module:
    matrix = torch.randn(4, 4)
    return module_of(
        q=torch.linalg.qr(matrix)[0],
        singular=torch.linalg.svd(matrix)[1],
        inverse=torch.linalg.inv(matrix),
        cholesky=torch.linalg.cholesky(matrix @ matrix.T + torch.eye(4)),
    )


@construction
def resized_and_set() -> nn.Module:
    resized, drawn, part = torch.randn(4), torch.empty(0), torch.empty(2)
    resized.resize_(8).fill_(1.0)
    drawn.resize_(3).normal_()
    part.data = torch.randn(5)[1:3]
    return module_of(resized=resized, drawn=drawn, part=part)


@construction
def masks_set_by_index() -> nn.Module:
    values, places = torch.randn(4, 4), torch.zeros(3)
    values[values > 0] = 1.0
    places[torch.tensor([0, 2])] = torch.tensor([1.0, 2.0])
    return module_of(values=values, places=places)


@construction
def the_output_of_an_lstm() -> nn.Module:
    lstm = nn.LSTM(4, 3)
    lstm.register_buffer("output", lstm(torch.randn(2, 1, 4))[0].detach())
    return lstm


@construction
def the_output_of_attention() -> nn.Module:
    query = torch.randn(1, 2, 16, 8)
    attention = nn.functional.scaled_dot_product_attention(query, query, query)
    return module_of(attention=attention)
