"""Random numbers in a recording: what a cell sees, and what it leaves."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from meta_magic.trace.options import ValueLimits
from tests.unit.eager import assert_bit_equal

both = pytest.mark.parametrize("cache", [True, False])


def on_the_cpu(cell):
    """Run a cell for real; return what it returns, and what is drawn next."""
    torch.manual_seed(0)
    returned = None
    with contextlib.suppress(ZeroDivisionError):
        returned = cell()
    return returned, torch.rand(700, device="cpu")


def recorded(cell, *, cache=True):
    """Run a cell under record(); return as above."""
    torch.manual_seed(0)
    returned = None
    with contextlib.suppress(ZeroDivisionError), record(cache=cache, named="real"):
        returned = cell()
    return returned, torch.rand(700, device="cpu")


def on_meta(cell):
    """Run a cell on plain meta, which draws nothing; return as above."""
    with torch.device("meta"):
        return on_the_cpu(cell)


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


def nested_alone():
    with record():
        torch.rand(4)


def nested_real():
    torch.rand(2)
    with record(named="real"):
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


NOTHING_REAL = {
    "no draw": lambda: torch.ones(2),
    "meta draws": lambda: (torch.rand(3), nn.Linear(2, 3))[0],
    "a real draw first": lambda: (torch.rand(3, device="cpu"), torch.rand(3))[0],
    "a seed": lambda: (torch.rand(1), torch.manual_seed(4), torch.rand(1))[2],
    "an error": raising,
    "a fork": forked,
    "nested": nested,
    "nested first": nested_first,
    "nested alone": nested_alone,
}
"""Cells that draw on meta, and for real before that at most."""

REAL_LAST = {
    "a real draw": lambda: torch.rand(3, device="cpu"),
    "in turns": lambda: torch.stack(
        [(torch.rand(2), torch.rand(2, device="cpu"))[1] for _ in range(4)]
    ),
    "a real normal of an odd number": lambda: (
        torch.rand(1),
        torch.randn(3, device="cpu"),
        torch.rand(1),
        torch.randn(3, device="cpu"),
    )[3],
    "a seed and a real draw": lambda: (
        torch.rand(1),
        torch.manual_seed(4),
        torch.rand(1),
        torch.rand(2, device="cpu"),
    )[3],
    "an error in a real draw": raising_in_a_draw,
    "a state put back": put_back,
    "nested with real draws": nested_real,
    "an initializer of a real tensor": lambda: (
        torch.rand(1),
        nn.init.trunc_normal_(torch.empty(5, device="cpu")),
    )[1],
    "dropout of a real tensor": lambda: (
        torch.rand(1),
        nn.functional.dropout(torch.ones(9, device="cpu")),
    )[1],
    "after draws that depend on values": lambda: (
        torch.poisson(torch.rand(5) * 9),
        torch.multinomial(torch.rand(6), 3),
        torch.rand(3, device="cpu"),
    )[2],
    "after a fork": lambda: (forked(), torch.rand(3, device="cpu"))[1],
    "a permutation of a loader": lambda: (
        nn.Linear(2, 2),
        torch.tensor(list(torch.utils.data.RandomSampler(range(9))), device="cpu"),
    )[1],
}
"""Cells of which the last draw is real."""


@both
@pytest.mark.parametrize("name", NOTHING_REAL)
def test_a_generator_from_which_nothing_real_was_drawn_is_where_it_was(name, cache):
    _, wanted = on_meta(NOTHING_REAL[name])
    _, drawn = recorded(NOTHING_REAL[name], cache=cache)
    assert torch.equal(drawn, wanted)


@both
@pytest.mark.parametrize("name", REAL_LAST)
def test_a_real_draw_is_that_of_a_real_cell_and_so_is_what_follows(name, cache):
    returned, drawn = recorded(REAL_LAST[name], cache=cache)
    wanted, following = on_the_cpu(REAL_LAST[name])
    assert torch.equal(returned, wanted)
    assert torch.equal(drawn, following)


def test_a_seed_that_is_read_is_that_of_a_real_cell():
    assert recorded(seed_read)[0] == on_the_cpu(seed_read)[0]


def test_a_real_draw_that_would_take_too_much_is_drawn_all_the_same_and_noted():
    torch.manual_seed(0)
    with record(limits=ValueLimits(flops=5), named="real") as trace:
        torch.rand(9)
        drawn = torch.rand(3, device="cpu")
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3))
    assert [note.kind for note in trace.notes if note.kind == "draw"] == ["draw"]


def test_a_generator_of_ones_own_is_left_where_the_last_real_draw_left_it():
    def cell(generator):
        torch.empty(3).normal_(generator=generator)
        return torch.rand(2, generator=generator, device="cpu")

    plain, used = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    wanted = cell(plain)
    with record(named="real"):
        drawn = cell(used)
        torch.empty(3).normal_(generator=used)
    assert torch.equal(drawn, wanted)
    assert torch.equal(torch.rand(3, generator=used), torch.rand(3, generator=plain))
    assert used.initial_seed() == 3


def test_draws_of_a_cell_that_raised_can_be_made_up_for():
    torch.manual_seed(0)
    real = nn.Linear(2, 3)
    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError), record():
        made = nn.Linear(2, 3)
        raise ZeroDivisionError
    materialize(made)
    assert_bit_equal(made, real)


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(3, 2)).pow(2).mean().backward()
    optimizer.step()


def in_cells(run, n_cells):
    """Build a model in one recording and train it in others; return it materialized."""
    torch.manual_seed(0)
    with run():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_cells):
        with run():
            train(model, optimizer)
    return model


@pytest.mark.parametrize("n_cells", [1, 3])
def test_the_next_recording_draws_on_where_the_last_one_would_have_ended(n_cells):
    real = in_cells(contextlib.nullcontext, n_cells)
    made = in_cells(record, n_cells)
    materialize(made)
    assert_bit_equal(made, real)


def read(made):
    """Return the values of a tensor of a recording."""
    module = nn.Module()
    module.register_buffer("made", made)
    materialize(module)
    return module.made


def test_a_real_draw_in_the_next_recording_is_that_of_a_real_cell():
    torch.manual_seed(0)
    torch.rand(3)
    wanted = torch.rand(2)
    torch.manual_seed(0)
    with record():
        torch.rand(3)
    with record(named="real"):
        drawn = torch.rand(2, device="cpu")
    assert torch.equal(drawn, wanted)


def test_numbers_drawn_between_two_recordings_are_a_doubt():
    torch.manual_seed(0)
    with record():
        first = nn.Linear(2, 2)
    torch.rand(1)
    with record():
        second = nn.Linear(2, 2)
    assert "was used between two recordings" in str(materialize(second))
    assert first.weight.is_meta


def test_a_cell_that_is_run_again_from_its_seed_is_no_doubt():
    for _ in range(2):
        torch.manual_seed(0)
        torch.rand(1)
        with record():
            made = nn.Linear(2, 2)
    assert materialize(made).notes == ()


def test_a_generator_of_ones_own_goes_on_when_all_that_it_drew_is_made():
    def draw(generator):
        return torch.normal(0.0, 1.0, (3,), generator=generator)

    generator = torch.Generator().manual_seed(1)
    draw(generator)
    wanted = draw(generator)
    generator = torch.Generator().manual_seed(1)
    with record():
        made = draw(generator)
    read(made)
    assert torch.equal(draw(generator), wanted)
