"""The state of torch's generator, as a cell reads it."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_magic import ValueLimits, record


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


def test_what_torch_saves_itself_is_set_again():
    def run():
        x = torch.ones(4, requires_grad=True)
        with torch.random.fork_rng():
            torch.rand(3)
        drop = nn.Dropout()
        checkpoint(drop, x, use_reentrant=False).sum().backward()
        return x.grad.tolist(), torch.rand(2).tolist(), read_state()

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


def test_a_state_that_takes_too_much_is_noted():
    with record(limits=ValueLimits(nbytes=1)) as trace:
        torch._standard_gamma(torch.ones(1000))
        torch.get_rng_state()
    assert any("torch.get_rng_state returned" in note.text for note in trace.notes)
