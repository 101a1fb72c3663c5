"""Constructions whose random numbers are hard to replay."""

import torch
from torch import nn

from tests.conformance.construction import Build, module_of, note_in

CONSTRUCTIONS: dict[str, Build] = {}
"""Functions that build a module, by what is special about it."""

construction = note_in(CONSTRUCTIONS)


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
