"""Random numbers in a replay: those of the recording, and no others."""

import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.nn import functional

from meta_magic import record
from meta_magic.replaying.steps import StepKind
from meta_magic.replaying.streams import split_draw
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import both, ops, plan, replay


def test_earlier_draws_are_made_again_into_memory_of_no_use():
    with record() as trace:
        other = torch.empty(3).normal_()
        wanted = torch.empty(2).uniform_()
    assert ops(plan(trace, wanted)) == ["normal_!", "empty!", "uniform_"]
    assert plan(trace, wanted).steps[0].kind == StepKind.DRAW
    assert other.is_meta


def test_later_draws_are_not_made():
    with record() as trace:
        wanted = torch.rand(2)
        other = torch.rand(3)
    assert ops(plan(trace, wanted)) == ["rand"]
    assert other.is_meta


def test_draws_before_a_seed_are_not_made():
    with record() as trace:
        torch.rand(5)
        torch.manual_seed(3)
        wanted = torch.rand(2)
    assert ops(plan(trace, wanted)) == ["rand"]


def test_draws_from_another_generator_are_not_made():
    with record() as trace:
        generator = torch.Generator().manual_seed(3)
        torch.rand(5)
        wanted = torch.empty(2).normal_(generator=generator)
    assert ops(plan(trace, wanted)) == ["empty!", "normal_"]


def test_a_draw_that_depends_on_values_has_what_it_reads():
    def build():
        weights = torch.rand(5)
        torch.multinomial(weights, 3)
        torch.bernoulli(weights)
        torch.poisson(weights * 4)
        return torch.rand(3)

    real, made = both(build)
    assert_same_tensor(made, real)


def gradient_of(distribution, *others):
    """Return the gradient of a sample."""
    a = torch.tensor([0.5, 0.7, 2.0], requires_grad=True)
    distribution(a, *others).rsample().square().sum().backward()
    return a.grad


GENERATED = {
    "exponential": lambda g: torch.empty(5).exponential_(2.0, generator=g),
    "cauchy": lambda g: torch.empty(5).cauchy_(generator=g),
    "log normal": lambda g: torch.empty(5).log_normal_(generator=g),
    "geometric": lambda g: torch.empty(5).geometric_(0.4, generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (5,), generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((5,), 0.5), generator=g),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_draw_from_a_generator_of_ones_own_is_bit_equal_to_eager(name):
    def build():
        generator = torch.Generator().manual_seed(3)
        first = GENERATED[name](generator)
        return torch.cat([first, torch.rand(2, generator=generator), torch.rand(2)])

    real, made = both(build)
    assert_same_tensor(made, real)


DRAWS = {
    "rand": lambda: torch.rand(5),
    "randn": lambda: torch.randn(5),
    "randn of 20": lambda: torch.randn(20),
    "randint": lambda: torch.randint(3, 9, (5,)),
    "randperm": lambda: torch.randperm(9),
    "rand_like": lambda: torch.rand_like(torch.ones(5)),
    "randn_like": lambda: torch.randn_like(torch.ones(5, dtype=torch.float64)),
    "randint_like": lambda: torch.randint_like(torch.ones(5), 4),
    "normal of tensors": lambda: torch.normal(torch.zeros(5), torch.ones(5)),
    "normal of a tensor": lambda: torch.normal(torch.zeros(5), 2.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "bernoulli_": lambda: torch.empty(9).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda: torch.empty(9).bernoulli_(torch.rand(9)),
    "multinomial": lambda: torch.multinomial(torch.arange(1.0, 6), 3),
    "poisson": lambda: torch.poisson(torch.arange(5.0)),
    "exponential": lambda: torch.empty(5).exponential_(2),
    "cauchy": lambda: torch.empty(5).cauchy_(),
    "log normal": lambda: torch.empty(5).log_normal_(),
    "geometric": lambda: torch.empty(5).geometric_(0.4),
    "random": lambda: torch.empty(5, dtype=torch.int64).random_(),
    "random to": lambda: torch.empty(5, dtype=torch.int64).random_(10),
    "random from to": lambda: torch.empty(5).random_(2, 10),
    "dropout": lambda: functional.dropout(torch.ones(20), 0.5),
    "alpha dropout": lambda: functional.alpha_dropout(torch.ones(20), training=True),
    "feature dropout": lambda: functional.dropout2d(torch.ones(2, 5, 2, 2)),
    "rrelu": lambda: functional.rrelu(-torch.ones(9), training=True),
    "gumbel": lambda: functional.gumbel_softmax(torch.zeros(5)),
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "half": lambda: torch.rand(9, dtype=torch.float16),
    "bfloat16": lambda: torch.empty(20, dtype=torch.bfloat16).normal_(),
    "strided": lambda: torch.zeros(4, 6)[:, ::2].normal_()._base,
    "transposed": lambda: torch.empty(4, 6).t().uniform_().t(),
    "fractional pooling": lambda: functional.fractional_max_pool2d(
        torch.arange(64.0).view(1, 1, 8, 8), 2, output_size=3
    ),
    "trunc normal": lambda: nn.init.trunc_normal_(torch.empty(40), std=2.0),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 3)),
    "orthogonal, by numpy": lambda: nn.init.orthogonal_(torch.empty(4, 3), np.sqrt(2)),
    "sparse": lambda: nn.init.sparse_(torch.empty(9, 4), 0.3),
    "kaiming": lambda: nn.init.kaiming_normal_(torch.empty(4, 3)),
    "xavier": lambda: nn.init.xavier_uniform_(torch.empty(4, 3)),
    "gamma": lambda: torch._standard_gamma(torch.ones(5)),
    "gamma's gradient": lambda: gradient_of(distributions.Gamma, 1.0),
    "dirichlet": lambda: distributions.Dirichlet(torch.ones(2, 3)).sample((4,)),
    "dirichlet's gradient": lambda: gradient_of(distributions.Dirichlet),
    "beta": lambda: distributions.Beta(torch.full((5,), 0.5), 2.0).rsample(),
    "binomial": lambda: distributions.Binomial(9, torch.full((5,), 0.4)).sample(),
    "cholesky": lambda: distributions.LKJCholesky(3, 0.5).sample(),
    "von Mises": lambda: distributions.VonMises(torch.zeros(2), 4.0).sample((3,)),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (5,)),
    "stacked": lambda: torch.stack([torch.rand(2) for _ in range(3)]),
}


def test_a_draw_like_a_constant_is_made_where_only_its_memory_is_wanted():
    def draw():
        noise = torch.rand_like(torch.tensor([1.0, 2.0]))
        return torch.cat([torch.zeros_like(noise), torch.rand(2)])

    real, made = both(draw)
    assert_same_tensor(made, real)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_bit_equal_to_eager_and_so_is_the_one_after_it(name):
    def build():
        first = DRAWS[name]()
        return torch.cat([first.reshape(-1).cfloat(), torch.rand(3).cfloat()])

    real, made = both(build)
    assert_same_tensor(made, real)


SPLIT = {
    "uniform_": lambda t, g: t.uniform_(-1, 1, generator=g),
    "normal_": lambda t, g: t.normal_(1, 2, generator=g),
}


MADE = {
    "rand": lambda t, g: torch.rand(t.shape, dtype=t.dtype, generator=g),
    "randn": lambda t, g: torch.randn(t.shape, dtype=t.dtype, generator=g),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numel", [63, 64, 65, 79, 80, 128, 129, 1000])
@pytest.mark.parametrize("name", [*SPLIT, *MADE])
def test_numbers_of_no_use_are_used_up_part_by_part(name, numel, dtype, monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.streams.MAX_DRAWN", 64)

    def build(generator):
        (SPLIT | MADE)[name](torch.empty(numel, dtype=dtype), generator)
        return torch.empty(9).uniform_(generator=generator)

    real = build(torch.Generator().manual_seed(1))
    with record() as trace:
        made = build(torch.Generator().manual_seed(1))
    assert torch.equal(replay(trace, made)[0], real)
    step = next(s for s in plan(trace, made).steps if s.kind == StepKind.DRAW)
    assert sum(split_draw(step.call)) == numel
    assert max(split_draw(step.call)) < 80


def test_what_a_generator_of_a_planned_device_draws_is_drawn_from_its_seed():
    with record(as_device="cuda") as trace:
        own = torch.Generator(device="cuda").manual_seed(3)
        first = torch.randn(3, generator=own, device="cuda")
        second = torch.randn(2, generator=own, device="cuda")
        made, after = first.tolist(), second.tolist()
    assert len(trace.program.randomness.generators) > 1
    like = torch.Generator().manual_seed(3)
    assert made == torch.randn(3, generator=like).tolist()
    assert after == torch.randn(2, generator=like).tolist()
