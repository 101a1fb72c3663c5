"""Which storages a replay leaves without values."""

import pytest
import torch
from torch.nn import functional

from meta_magic import record
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.steps import Request
from tests.unit.replaying.replays import CPU, storages_of


def test_a_storage_of_nothing_is_uninitialized():
    with record() as trace:
        x, y = torch.empty(3), torch.zeros(3)
    numbers = storages_of(trace, x, y)
    run = Execution(trace.program, Request(storages=frozenset(numbers)), CPU)
    assert run.uninitialized == {numbers[0]}


def test_what_was_computed_from_uninitialized_memory_is_uninitialized():
    with record() as trace:
        x = torch.empty(3) * 2
        y = x + 1
    (number,) = storages_of(trace, y)
    run = Execution(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == {number}


def test_memory_that_was_filled_in_part_is_uninitialized():
    with record() as trace:
        x = torch.empty(3)
        x[0] = 1
    (number,) = storages_of(trace, x)
    run = Execution(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == {number}


def test_memory_that_was_filled_part_by_part_is_not_uninitialized():
    with record() as trace:
        x = torch.empty(2, 3)
        x[0].zero_()
        x[1].zero_()
    (number,) = storages_of(trace, x)
    run = Execution(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == set()


@pytest.mark.parametrize("training", [False, True])
def test_a_leaky_unit_reads_none_of_the_memory_for_its_noise(training):
    with record() as trace:
        x = torch.tensor([-1.0, 1.0], requires_grad=True)
        y = functional.rrelu(x, training=training)
        y.sum().backward()
    numbers = storages_of(trace, y, x.grad)
    run = Execution(trace.program, Request(storages=frozenset(numbers)), CPU)
    assert run.uninitialized == set()


@pytest.mark.parametrize("wanted", ["input", "weight"])
def test_a_gradient_of_a_convolution_reads_none_of_what_it_is_of(wanted):
    with record() as trace:
        made = {"input": torch.ones(1, 2, 4, 4), "weight": torch.ones(3, 2, 3, 3)}
        made[wanted] = torch.empty_like(made[wanted])
        sizes = [[3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        mask = [wanted == "input", wanted == "weight", False]
        grads = torch.ops.aten.convolution_backward(
            torch.ones(1, 3, 2, 2), made["input"], made["weight"], *sizes, mask
        )
    (number,) = storages_of(trace, next(g for g in grads if g is not None))
    run = Execution(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == set()


def test_noise_that_nothing_wrote_is_uninitialized():
    with record() as trace:
        noise = torch.empty(2)
        torch.ops.aten.rrelu_with_noise(torch.ones(2), noise, 0.1, 0.3)
    (number,) = storages_of(trace, noise)
    run = Execution(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == {number}
