"""Constructions whose modules or ties are hard to replay."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.conformance.construction import Build, module_of, note_in

CONSTRUCTIONS: dict[str, Build] = {}
"""Functions that build a module, by what is special about it."""

construction = note_in(CONSTRUCTIONS)


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
