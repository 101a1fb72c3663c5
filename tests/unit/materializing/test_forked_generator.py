"""Torch's generator after a replay of what was drawn in a fork."""

import pytest
import torch
from torch import nn

from meta_magic import materialize
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.test_generator import draws_on_like


def draw_in_a_fork():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(2, 3)


def fork_between():
    first = nn.Linear(2, 3)
    with torch.random.fork_rng(devices=[]):
        second = nn.Linear(3, 4)
        third = nn.Linear(3, 4)
    return nn.Sequential(first, second, third, nn.Linear(4, 5))


def draw_before_that_nothing_needs():
    torch.rand(3)
    torch.rand(3)
    return draw_in_a_fork()


def draw_between_that_depends_on_values():
    made = draw_in_a_fork()
    made.register_buffer("drawn", torch.poisson(torch.ones(3)))
    return nn.Sequential(made, draw_in_a_fork())


FORKS = {
    "within the cell": fork_between,
    "with a seed of its own": lambda: nn.Sequential(draw_in_a_fork(), nn.Linear(4, 5)),
    "before it what nothing needs": draw_before_that_nothing_needs,
    "before it what depends on values": draw_between_that_depends_on_values,
}


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_counts(name):
    real, made, _, state = build_twice(FORKS[name])
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_draw_before_a_fork_that_depends_on_values_is_named_where_it_is_left_out():
    def build():
        torch.poisson(torch.ones(3))
        return draw_in_a_fork()

    _, made, _, _ = build_twice(build)
    (note,) = materialize(made).notes
    assert "was left before aten.poisson.default in line" in note
