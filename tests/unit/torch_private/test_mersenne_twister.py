"""Advance a generator on the CPU without drawing."""

import pytest
import torch

from meta_magic.torch_private.mersenne_twister import advance, count_taken


def draw(generator, n):
    """Let torch draw words: ``uniform_`` takes one for each number."""
    while n:
        taken = min(n, 2**20)
        torch.empty(taken).uniform_(generator=generator)
        n -= taken


@pytest.mark.parametrize("n_before", [0, 1, 7, 622, 623, 624, 625, 1248, 5000])
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
def test_a_state_is_advanced_as_torch_does_by_drawing(seed, n_before):
    for n in (0, 1, 2, 226, 227, 228, 623, 624, 625, 1247, 1248, 19937, 20561, 70001):
        generator = torch.Generator().manual_seed(seed)
        draw(generator, n_before)
        before = generator.get_state()
        draw(generator, n)
        assert torch.equal(advance(before, n), generator.get_state()), n


def test_millions_of_words_are_skipped_as_torch_draws_them():
    generator = torch.Generator().manual_seed(5)
    draw(generator, 3)
    before = generator.get_state()
    draw(generator, 50_000_017)
    assert torch.equal(advance(before, 50_000_017), generator.get_state())


def test_many_words_at_once_are_those_of_many_steps():
    state = torch.Generator().manual_seed(5).get_state()
    n = 139 * 10**9 + 1
    assert torch.equal(advance(state, 3 * n), advance(advance(advance(state, n), n), n))


def test_what_normal_left_for_the_next_stays():
    generator = torch.Generator().manual_seed(5)
    torch.empty(1).normal_(generator=generator)
    before = generator.get_state()
    draw(generator, 1000)
    after = advance(before, 1000)
    generator.set_state(after)
    own = torch.Generator()
    own.set_state(before)
    draw(own, 1000)
    made, wanted = (torch.empty(3).normal_(generator=g) for g in (generator, own))
    assert torch.equal(made, wanted)


def test_a_state_that_is_laid_out_otherwise_is_not_advanced():
    state = torch.Generator().manual_seed(5).get_state()
    assert advance(state[:-8], 9) is None
    state[8:12] = 255
    assert count_taken(state) is None
    assert advance(state, 9) is None


def test_the_state_before_is_left_as_it_is():
    state = torch.Generator().manual_seed(5).get_state()
    before = state.clone()
    advance(state, 10_000)
    assert torch.equal(state, before)
