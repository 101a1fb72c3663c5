"""What the CPU refuses to make and to fill, by dtypes and by numbers that are told."""

import pytest
import torch

from meta_magic import record

CALLS = {
    "a number": lambda *size: torch.full(size, 300, dtype=torch.uint8),
    "a number of itself": lambda *_: torch.scalar_tensor(300, dtype=torch.uint8),
    "a number like another": lambda *size: torch.full_like(bytes_of(size), 300),
    "a new number": lambda *size: bytes_of(size).new_full(size, 300),
    "a range of truths": lambda *size: torch.arange(size[0], dtype=torch.bool),
    "chances in integers": lambda *size: torch.rand(size, dtype=torch.long),
    "chances like integers": lambda *size: torch.rand_like(bytes_of(size)),
    "large integers": lambda *size: torch.randint(0, 300, size, dtype=torch.uint8),
    "integers from somewhere": lambda *size: bytes_of(size).random_(7, 300),
    "no range": lambda *size: torch.empty(size).uniform_(2, 1),
    "no chance": lambda *size: torch.empty(size).bernoulli_(2.0),
}
TAKEN = {
    "a number": lambda *size: torch.full(size, 3, dtype=torch.uint8),
    "a range": lambda *size: torch.arange(size[0]),
    "a large range": lambda *_: torch.arange(10**11),
    "integers": lambda *size: torch.randint(0, 3, size),
    "chances": lambda *size: torch.empty(size).uniform_(1, 2),
}


def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("size", [(3, 2), (3000, 64)])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_in_the_words_of_the_cpu(name, size):
    with pytest.raises(RuntimeError) as wanted:
        CALLS[name](*size)
    with record(as_device="cpu"), pytest.raises(wanted.type) as met:
        CALLS[name](*size)
    assert str(met.value) == str(wanted.value)


@pytest.mark.parametrize("size", [(3, 2), (3000, 64), (300_000, 300_000)])
@pytest.mark.parametrize("name", TAKEN)
def test_what_it_makes_is_taken_at_any_size(name, size):
    with record(as_device="cpu"):
        TAKEN[name](*size)


def test_a_number_that_memory_is_lacking_for_is_as_on_meta():
    with record(as_device="cpu"):
        torch.full((300_000, 300_000, 300), 300, dtype=torch.uint8)


def test_what_it_names_is_a_plan():
    with record(as_device="cpu"), pytest.raises(RuntimeError, match="overflow"):
        torch.full((3,), 300, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("make", [torch.rand, torch.zeros, torch.randperm])
def test_pinned_memory_needs_no_accelerator(make):
    with record(as_device="cpu"):
        make(3, pin_memory=True)
