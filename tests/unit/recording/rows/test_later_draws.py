"""Random numbers in the next recording: those that come after the last one's."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal


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


def test_a_generator_of_ones_own_goes_on_in_the_next_recording():
    generator = torch.Generator().manual_seed(1)
    wanted = [torch.rand(2, generator=generator) for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    drawn = []
    for _ in range(2):
        with record():
            drawn.append(torch.rand(2, generator=generator))
    assert torch.equal(read(drawn[1]), wanted[1])


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


def test_a_seed_between_two_recordings_counts_though_it_is_the_same():
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        with record():
            made.append(torch.rand(3))
    torch.manual_seed(0)
    wanted = torch.rand(3)
    assert all(torch.equal(read(tensor), wanted) for tensor in made)


def test_a_submodule_made_real_in_between_does_not_change_the_next_recording():
    def build():
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))

    torch.manual_seed(0)
    build()
    real = nn.Linear(4, 5)
    torch.manual_seed(0)
    with record():
        first = build()
    materialize(first[0])
    with record():
        made = nn.Linear(4, 5)
    materialize(made)
    assert_bit_equal(made, real)


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


def test_a_recording_whose_numbers_are_real_leaves_no_doubt_to_the_next():
    torch.manual_seed(0)
    with record():
        first = nn.Linear(2, 2)
    torch.manual_seed(0)
    with record(), torch.device("cpu"):
        torch.rand(1)
    with record():
        second = nn.Linear(2, 2)
    assert materialize(second).notes == ()
    assert first.weight.is_meta


def test_numbers_drawn_after_a_seed_between_two_recordings_are_none():
    torch.manual_seed(0)
    with record():
        first = nn.Linear(2, 2)
    torch.manual_seed(1)
    torch.rand(1)
    with record():
        second = nn.Linear(2, 2)
    assert materialize(second).notes == ()
    assert first.weight.is_meta


def test_a_state_that_an_earlier_recording_saved_is_gone_on_from():
    def compute_again(run):
        torch.manual_seed(0)
        with run():
            torch.randn(3)
            x = torch.ones(9, requires_grad=True)
            y = checkpoint(lambda a: dropout(a.sin(), 0.3) * a, x, use_reentrant=False)
        with run():
            torch.manual_seed(4)
            y.sum().backward()
        return x.grad

    real = compute_again(contextlib.nullcontext)
    assert torch.equal(read(compute_again(record)), real)


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


def test_a_generator_is_not_moved_that_stands_where_the_cell_left_it():
    def cell():
        drawn = torch.randn(4)
        list(torch.utils.data.RandomSampler(range(5)))
        return drawn

    torch.manual_seed(0)
    cell()
    wanted = torch.rand(3)
    torch.manual_seed(0)
    with record():
        made = cell()
    read(made)
    assert torch.equal(torch.rand(3), wanted)
