"""Constructions of modules that are hard to replay, one idea each."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

Build = Callable[[], nn.Module]


def note_in(constructions: dict[str, Build]) -> Callable[[Build], Build]:
    """Return a decorator that notes a construction under its name, in words."""

    def construction(build: Build) -> Build:
        constructions[build.__name__.replace("_", " ").strip()] = build
        return build

    return construction


def module_of(**tensors: Any) -> nn.Module:
    """Return a module with parameters, buffers and submodules of these names."""
    module = nn.Module()
    for name, value in tensors.items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module


# Constructions whose values are hard to replay


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


# Constructions whose random numbers are hard to replay


"""Functions that build a module, by what is special about it."""


@construction
def random_numbers_on_the_cpu_by_name() -> nn.Module:
    return module_of(
        before=nn.Linear(4, 4), real=torch.randn(5, device="cpu"), after=nn.Linear(4, 4)
    )


@construction
def manual_seed_inside() -> nn.Module:
    before = nn.Linear(4, 4)
    torch.manual_seed(77)
    return nn.Sequential(before, nn.Linear(4, 4), nn.Linear(4, 4))


@construction
def fork_rng_inside() -> nn.Module:
    before = nn.Linear(4, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        forked = nn.Linear(4, 4)
    return nn.Sequential(before, forked, nn.Linear(4, 4))


@construction
def generator_state_put_back() -> nn.Module:
    state = torch.get_rng_state()
    first = nn.Linear(4, 4)
    torch.set_rng_state(state)
    return nn.Sequential(first, nn.Linear(4, 4), nn.Linear(4, 4))


@construction
def a_generator_of_its_own() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    return module_of(
        linear=nn.Linear(4, 4),
        w=nn.Parameter(torch.empty(4, 4).normal_(generator=generator)),
        v=nn.Parameter(torch.randn(4, generator=generator)),
    )


@construction
def all_kinds_of_random_numbers() -> nn.Module:
    order = torch.randperm(10)
    return module_of(
        order=order,
        integers=torch.randint(0, 5, (3,)),
        shuffled=nn.Parameter(torch.rand(10)[order]),
        bernoulli=torch.bernoulli(torch.full((8,), 0.5)),
        multinomial=torch.multinomial(torch.ones(5), 3),
        exponential=torch.empty(3).exponential_(),
        log_normal=torch.empty(3).log_normal_(),
        cauchy=torch.empty(3).cauchy_(),
        geometric=torch.empty(3).geometric_(0.4),
        poisson=torch.poisson(torch.full((3,), 2.0)),
        normal=torch.normal(torch.zeros(3), torch.ones(3)),
        like=torch.randn_like(torch.empty(3)),
        dropped=nn.functional.dropout(torch.ones(9)),
    )


@construction
def random_numbers_thrown_away() -> nn.Module:
    nn.Linear(100, 100)
    torch.randn(17)
    linear = nn.Linear(4, 4)
    nn.init.zeros_(linear.weight)
    return linear


@construction
def the_default_generator_by_name() -> nn.Module:
    return module_of(
        named=torch.randn(3, generator=torch.default_generator), unnamed=torch.randn(3)
    )


# Constructions whose modules or ties are hard to replay


"""Functions that build a module, by what is special about it."""


@construction
def ties_of_parameters_and_of_storages() -> nn.Module:
    module = module_of(embedding=nn.Embedding(10, 4))
    module.head = nn.Linear(4, 10, bias=False)
    module.head.weight = module.embedding.weight
    module.view = nn.Linear(4, 10, bias=False)
    module.view.weight = nn.Parameter(module.embedding.weight.data.view(10, 4))
    module.register_buffer("row", module.embedding.weight.data[2])
    return module


@construction
def a_submodule_at_two_places() -> nn.Module:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.ReLU(), linear)


@construction
def views_with_strides() -> nn.Module:
    base = torch.randn(6, 8)
    return module_of(
        transposed=nn.Parameter(base.t()),
        every_other=base[::2, 1::3],
        expanded=torch.randn(3, 1).expand(3, 5),
        channels_last=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        conjugate=torch.randn(3, dtype=torch.complex64).conj(),
    )


@construction
def weight_norm() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(6, 5))


@construction
def weight_norm_by_hooks() -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Linear(6, 5))


@construction
def spectral_norm() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(6, 5))


@construction
def spectral_norm_by_hooks() -> nn.Module:
    return torch.nn.utils.spectral_norm(nn.Linear(6, 5))


@construction
def orthogonal_parametrization() -> nn.Module:
    return parametrizations.orthogonal(nn.Linear(6, 6))


class Symmetric(nn.Module):
    """Makes a square matrix symmetric."""

    def forward(self, matrix: Tensor) -> Tensor:
        """Return the symmetric matrix with the same upper triangle."""
        return matrix.triu() + matrix.triu(1).transpose(-1, -2)


@construction
def a_parametrization_of_ones_own() -> nn.Module:
    linear = nn.Linear(5, 5)
    parametrize.register_parametrization(linear, "weight", Symmetric())
    return linear


@construction
def pruned() -> nn.Module:
    from torch.nn.utils import prune

    return prune.random_unstructured(nn.Linear(6, 5), "weight", amount=0.4)


@construction
def lazy_and_called_once() -> nn.Module:
    linear = nn.LazyLinear(5)
    linear(torch.zeros(2, 7))
    return linear


@construction
def deep_copies() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    return nn.ModuleList([copy.deepcopy(layer) for _ in range(2)])


@construction
def requires_grad_turned_off() -> nn.Module:
    linear = nn.Linear(4, 4)
    linear.weight.requires_grad_(False)
    return linear


@construction
def batch_norm_that_has_run() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm(torch.randn(8, 4))
    return norm


@construction
def trained_for_two_steps() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    model.zero_grad()
    return model


@construction
def loaded_from_a_state_dict_of_the_block() -> nn.Module:
    source, target = nn.Linear(4, 4), nn.Linear(4, 4)
    target.load_state_dict(source.state_dict())
    return target


@construction
def instance_norm_that_has_run() -> nn.Module:
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    norm(torch.randn(3, 4, 5))
    return norm


@construction
def skip_init() -> nn.Module:
    linear = nn.utils.skip_init(nn.Linear, 3, 3)
    nn.init.normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


@construction
def a_module_on_meta_by_name() -> nn.Module:
    nn.Linear(2, 2, device="meta")
    return nn.Linear(2, 2)


@construction
def lists_and_dicts_of_parameters() -> nn.Module:
    numbers = nn.ParameterList([torch.randn(2), torch.zeros(3)])
    return nn.ModuleDict(
        {"list": numbers, "dict": nn.ParameterDict({"x": nn.Parameter(torch.randn(2))})}
    )


@construction
def vector_to_parameters() -> nn.Module:
    linear = nn.Linear(3, 3)
    nn.utils.vector_to_parameters(torch.arange(12.0), linear.parameters())
    return linear
