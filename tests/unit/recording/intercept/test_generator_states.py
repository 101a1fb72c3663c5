"""The states of generators, as a cell reads and sets them."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from meta_magic import record


def read_state():
    return torch.get_rng_state().tolist()


def check(run):
    torch.manual_seed(0)
    wanted = run()
    torch.manual_seed(0)
    with record() as trace:
        assert run() == wanted
    return trace


def test_the_state_after_draws_has_the_bytes_that_it_has_on_the_cpu():
    def run():
        torch.rand(3), torch.randn(20), torch.randperm(5), nn.Linear(3, 4)
        torch.distributions.Gamma(2.0, 1.0).sample((3,))
        return read_state(), torch.random.get_rng_state().numpy().sum()

    check(run)


def test_draws_go_on_from_a_state_that_was_read():
    def run():
        torch.rand(3)
        state = torch.get_rng_state()
        first = torch.rand(2).tolist(), read_state()
        torch.set_rng_state(state)
        return first, torch.rand(2).tolist(), read_state()

    check(run)


def test_a_later_cell_reads_the_state_that_this_one_leaves():
    torch.manual_seed(0)
    torch.rand(3)
    wanted = read_state()
    torch.manual_seed(0)
    with record():
        torch.rand(3)
    with record():
        assert read_state() == wanted


def own(*, seed=3):
    generator = torch.Generator().manual_seed(seed)
    torch.rand(3, generator=generator)
    torch.randn(1, generator=generator, dtype=torch.float64)
    return generator


def draw(generator):
    drawn = torch.rand(2, generator=generator), torch.randn(1, generator=generator)
    return [t.tolist() for t in drawn], generator.get_state().tolist()


def set_again(generator):
    state = generator.get_state()
    first = draw(generator)
    generator.set_state(state)
    return first, draw(generator)


def save_and_load(generator):
    file = io.BytesIO()
    torch.save({"rng": generator.get_state()}, file)
    file.seek(0)
    state = torch.load(file)["rng"]
    other = torch.Generator()
    other.set_state(state)
    torch.set_rng_state(state)
    return draw(generator), draw(other), read_state(), torch.rand(2).tolist()


def compare(generator):
    same = own().get_state()
    state = generator.get_state()
    return torch.equal(state, same), state[:16].tolist(), int(state.sum())


USES = {
    "read": lambda g: g.get_state().numpy().tobytes(),
    "set again": set_again,
    "cloned": lambda g: [draw(h) for h in (g.clone_state(), g)],
    "copied": lambda g: [draw(h) for h in (copy.deepcopy(g), g)],
    "pickled": lambda g: [draw(h) for h in (pickle.loads(pickle.dumps(g)), g)],
    "saved": save_and_load,
    "compared": compare,
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("make", [own, lambda: torch.default_generator])
def test_a_generator_has_the_states_and_numbers_that_it_has_on_the_cpu(name, make):
    def run():
        torch.rand(3)
        return USES[name](make()), torch.rand(2).tolist()

    check(run)


def test_a_generator_of_an_earlier_cell_has_the_state_that_it_left():
    wanted = draw(own())
    with record():
        generator = own()
    with record():
        assert draw(generator) == wanted
