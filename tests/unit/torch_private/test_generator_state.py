"""Unit tests of ``torch_private/generator_state.py``."""

import pytest
import torch
from torch import Generator

from meta_magic.torch_private import generator_state
from meta_magic.torch_private.generator_state import advance, count_taken, find_memory

NUMBERS = 0x6D6D0001, 7, 0x746F6B6E


def seed(number=5):
    return torch.Generator().manual_seed(number)


def draw(generator, n):
    """Let torch draw words: ``uniform_`` takes one for each number."""
    while n:
        taken = min(n, 2**20)
        torch.empty(taken).uniform_(generator=generator)
        n -= taken


def skip(state, n):
    """Return the state of a generator after so many more words, by ``advance``."""
    generator = Generator()
    generator.set_state(state)
    advance(generator, n)
    return generator.get_state()


@pytest.mark.parametrize("min_jump", [1, 2**20])
@pytest.mark.parametrize("n_before", [0, 1, 7, 622, 623, 624, 625, 1248, 5000])
@pytest.mark.parametrize("number", [0, 1, 2**40 + 3])
def test_a_state_is_advanced_as_torch_does_by_drawing(
    number, n_before, min_jump, monkeypatch
):
    monkeypatch.setattr(generator_state, "MIN_JUMP", min_jump)
    for n in (0, 1, 2, 623, 624, 1247, 1248, 1249, 1872, 19937, 20561, 70001):
        generator = seed(number)
        draw(generator, n_before)
        before = generator.get_state()
        draw(generator, n)
        assert torch.equal(skip(before, n), generator.get_state()), n


def test_many_words_at_once_are_those_of_many_steps():
    state = seed().get_state()
    n = 139 * 10**9 + 1
    assert torch.equal(skip(state, 3 * n), skip(skip(skip(state, n), n), n))


def test_a_normal_number_drawn_ahead_stays():
    generator = seed()
    torch.empty(1).normal_(generator=generator)
    before = generator.get_state()
    draw(generator, 2**21)
    own = torch.Generator()
    own.set_state(skip(before, 2**21))
    made, wanted = (torch.empty(3).normal_(generator=g) for g in (own, generator))
    assert torch.equal(made, wanted)


def test_a_state_with_another_layout_is_not_counted():
    state = seed().get_state()
    assert count_taken(state[:-8]) is None
    state[8:12] = 255
    assert count_taken(state) is None


def put_in_state(generator):
    state = generator.get_state()
    state[24:48].view(torch.int64).copy_(torch.tensor(NUMBERS))
    generator.set_state(state)
    return find_memory(generator, *NUMBERS)


def test_numbers_put_in_memory_are_those_that_the_state_has():
    generator = Generator()
    memory = put_in_state(generator)
    before = generator.get_state()

    memory.put(1, 2, 3)

    after = generator.get_state()
    assert after[24:48].view(torch.int64).tolist() == [1, 2, 3]
    assert torch.equal(after[48:], before[48:])
    assert torch.equal(after[:24], before[:24])
    assert memory.is_as_put()


def test_a_draw_is_seen_in_memory():
    generator = Generator()
    memory = put_in_state(generator)
    torch.rand(1, generator=generator)
    assert not memory.is_as_put()


def test_a_generator_without_the_numbers_has_no_memory():
    assert find_memory(Generator(), *NUMBERS) is None
