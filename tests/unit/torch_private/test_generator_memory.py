"""A generator's numbers, put where torch has them."""

import torch
from torch import Generator

from meta_magic.torch_private.generator_memory import (
    GeneratorMemory,
    find_memory,
    sees_changes,
)

NUMBERS = 0x6D6D0001, 7, 0x746F6B6E


def make_memory(generator: Generator) -> GeneratorMemory:
    state = generator.get_state()
    state[24:48].view(torch.int64).copy_(torch.tensor(NUMBERS))
    generator.set_state(state)
    memory = find_memory(generator, *NUMBERS)
    assert memory is not None
    return memory


def test_numbers_put_in_memory_are_those_that_the_state_has() -> None:
    generator = Generator()
    memory = make_memory(generator)
    before = generator.get_state()

    memory.put(1, 2, 3)

    after = generator.get_state()
    assert after[24:48].view(torch.int64).tolist() == [1, 2, 3]
    assert torch.equal(after[48:], before[48:])
    assert torch.equal(after[:24], before[:24])
    assert memory.is_as_put()


def test_a_generator_that_drew_is_not_as_it_was_put() -> None:
    generator = Generator()
    memory = make_memory(generator)

    torch.rand(1, generator=generator)

    assert not memory.is_as_put()


def test_a_normal_number_drawn_ahead_is_seen_to_be_taken() -> None:
    generator = Generator()
    torch.randn(1, generator=generator, dtype=torch.float64)
    memory = make_memory(generator)

    torch.randn(1, generator=generator, dtype=torch.float64)

    assert not memory.is_as_put()


def test_a_generator_without_the_numbers_has_no_memory() -> None:
    assert find_memory(Generator(), *NUMBERS) is None


def test_a_memory_in_which_draws_are_not_seen_is_not_used(monkeypatch) -> None:
    make_memory(Generator())
    monkeypatch.setattr(GeneratorMemory, "is_as_put", lambda _: True)
    sees_changes.cache_clear()
    try:
        generator = Generator()
        state = generator.get_state()
        state[24:48].view(torch.int64).copy_(torch.tensor(NUMBERS))
        generator.set_state(state)
        assert find_memory(generator, *NUMBERS) is None
    finally:
        sees_changes.cache_clear()
