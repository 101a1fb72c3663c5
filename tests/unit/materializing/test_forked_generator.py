"""Torch's generator after a replay of what was drawn in a fork."""

import torch
from torch import nn

from meta_magic import materialize
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.test_generator import draws_on_like


def draw_in_a_fork():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(2, 3)


def test_a_fork_within_the_cell_counts():
    def build():
        first = nn.Linear(2, 3)
        with torch.random.fork_rng(devices=[]):
            second = nn.Linear(3, 4)
            third = nn.Linear(3, 4)
        return nn.Sequential(first, second, third, nn.Linear(4, 5))

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_fork_with_a_seed_of_its_own_counts():
    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            first = nn.Linear(2, 3)
        return nn.Sequential(first, nn.Linear(4, 5))

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_what_was_drawn_before_a_fork_counts_though_nothing_needs_it():
    def build():
        torch.rand(3)
        torch.rand(3)
        return draw_in_a_fork()

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_draw_before_a_fork_that_depends_on_values_is_made_where_it_is_needed():
    def build():
        made = draw_in_a_fork()
        made.register_buffer("drawn", torch.poisson(torch.ones(3)))
        other = draw_in_a_fork()
        return nn.Sequential(made, other)

    real, made, _, state = build_twice(build)
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
