"""Random numbers in a recording: what a cell sees, and what it leaves."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal

both = pytest.mark.parametrize("cache", [True, False])


def with_meta(cell, seed=0):
    """Run a cell on plain meta; return what it returns and the generator's state."""
    torch.manual_seed(seed)
    try:
        with torch.device("meta"):
            returned = cell()
    except ZeroDivisionError:
        returned = None
    return returned, torch.get_rng_state()


def with_record(cell, seed=0, *, cache=True):
    torch.manual_seed(seed)
    returned = None
    try:
        with record(cache=cache):
            returned = cell()
    except ZeroDivisionError:
        pass
    return returned, torch.get_rng_state()


def raising():
    torch.rand(3)
    raise ZeroDivisionError


def raising_in_a_draw():
    torch.rand(3)
    with contextlib.suppress(RuntimeError):
        torch.multinomial(torch.zeros(3, device="cpu"), 2)
    return torch.rand(2, device="cpu")


def forked():
    torch.rand(2)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
        torch.manual_seed(5)
        torch.rand(1)
    torch.rand(2)


def nested():
    torch.rand(2)
    with record():
        torch.rand(3)
    torch.rand(4)


def nested_first():
    with record():
        torch.rand(3)
    torch.rand(4)


def nested_last():
    torch.rand(3)
    with record():
        torch.rand(4)


def nested_alone():
    with record():
        torch.rand(4)


def nested_real():
    torch.rand(2)
    with record():
        torch.rand(2)
        inner = torch.rand(3, device="cpu")
    return torch.cat([inner, torch.rand(3, device="cpu")])


def seed_read():
    torch.rand(3)
    return torch.tensor(torch.initial_seed(), device="cpu")


def put_back():
    torch.rand(2)
    state = torch.get_rng_state()
    a = torch.rand(3, device="cpu")
    torch.set_rng_state(state)
    return torch.stack([a, torch.rand(3, device="cpu")])


CELLS = {
    "no draw": lambda: torch.ones(2),
    "meta draws": lambda: (torch.rand(3), nn.Linear(2, 3))[0],
    "a real draw": lambda: torch.rand(3, device="cpu"),
    "a real draw after a meta draw": lambda: (
        torch.rand(3),
        torch.rand(3, device="cpu"),
    )[1],
    "a meta draw after a real draw": lambda: (
        torch.rand(3, device="cpu"),
        torch.rand(3),
    )[0],
    "in turns": lambda: torch.stack(
        [(torch.rand(2), torch.rand(2, device="cpu"))[1] for _ in range(4)]
    ),
    "a real normal of an odd number": lambda: (
        torch.rand(1),
        torch.randn(3, device="cpu"),
        torch.rand(1),
        torch.randn(3, device="cpu"),
    )[3],
    "a seed": lambda: (torch.rand(1), torch.manual_seed(4), torch.rand(1))[2],
    "a seed last": lambda: (torch.rand(1), torch.manual_seed(4))[0],
    "a seed and a real draw": lambda: (
        torch.rand(1),
        torch.manual_seed(4),
        torch.rand(1),
        torch.rand(2, device="cpu"),
    )[3],
    "an error": raising,
    "an error in a real draw": raising_in_a_draw,
    "a fork": forked,
    "a state put back": put_back,
    "a seed that is read": seed_read,
    "nested": nested,
    "nested first": nested_first,
    "nested last": nested_last,
    "nested alone": nested_alone,
    "nested with real draws": nested_real,
    "an initializer of a real tensor": lambda: (
        torch.rand(1),
        nn.init.trunc_normal_(torch.empty(5, device="cpu")),
    )[1],
    "dropout of a real tensor": lambda: (
        torch.rand(1),
        nn.functional.dropout(torch.ones(9, device="cpu")),
    )[1],
    "a method of a real tensor": lambda: (
        torch.rand(1),
        torch.empty(3, device="cpu").uniform_(),
    )[1],
}


@both
@pytest.mark.parametrize("name", CELLS)
def test_the_generator_is_left_as_plain_meta_leaves_it(name, cache):
    _, wanted = with_meta(CELLS[name])
    _, state = with_record(CELLS[name], cache=cache)
    assert torch.equal(state, wanted)


@both
@pytest.mark.parametrize("name", CELLS)
def test_real_numbers_in_a_cell_are_those_of_plain_meta(name, cache):
    wanted, _ = with_meta(CELLS[name])
    returned, _ = with_record(CELLS[name], cache=cache)
    assert (returned is None) == (wanted is None)
    if wanted is not None and not wanted.is_meta:
        assert torch.equal(returned, wanted)


def test_a_generator_of_ones_own_is_left_as_plain_meta_leaves_it():
    def cell(generator):
        torch.empty(3, device="meta").normal_(generator=generator)
        torch.rand(2, generator=generator, device="cpu")
        torch.empty(3, device="meta").normal_(generator=generator)

    plain, used = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    cell(plain)
    with record():
        cell(used)
    assert torch.equal(used.get_state(), plain.get_state())
    assert used.initial_seed() == 3


def test_a_generator_that_is_made_in_the_cell_shows_no_token_afterwards():
    with record():
        generator = torch.Generator().manual_seed(3)
        torch.empty(3).normal_(generator=generator)
    assert generator.initial_seed() == 3


def test_a_random_sampler_in_a_cell_draws_as_if_meta_drew_nothing():
    sampler = torch.utils.data.RandomSampler(range(9))
    torch.manual_seed(0)
    wanted = list(sampler)
    torch.manual_seed(0)
    with record():
        nn.Linear(2, 2)
        drawn = list(sampler)
    assert drawn == wanted


def test_the_seed_is_the_users_after_the_cell():
    torch.manual_seed(42)
    with record():
        torch.rand(3)
    assert torch.initial_seed() == 42


def test_a_state_that_was_read_in_the_cell_is_no_token_afterwards():
    torch.manual_seed(42)
    with record():
        torch.rand(3)
        state = torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.initial_seed() == 42


def test_draws_of_a_cell_that_raised_can_be_made_up_for():
    torch.manual_seed(0)
    real = nn.Linear(2, 3)
    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError), record():
        made = nn.Linear(2, 3)
        raise ZeroDivisionError
    materialize(made)
    assert_bit_equal(made, real)


def test_a_real_draw_goes_on_where_a_real_cell_would_not():
    # On meta nothing moves the generator: both cells draw the same.
    torch.manual_seed(0)
    with record():
        torch.rand(3)
        first = torch.rand(2, device="cpu")
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(2))
