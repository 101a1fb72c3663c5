"""Calls that differ in a number, or read one tensor twice, need their kernel once."""

import pytest
import torch
from torch import nn

from meta_magic.session.record import record


def _train(n_steps):
    """Train for some steps whose optimizer has another number in each."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0123)
    for _ in range(n_steps):
        model(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_number_that_changes_runs_no_kernel_again(ran):
    with record():
        x = torch.ones(7, 3)
        for number in (0.5, 0.25, 0.125):
            x.div(number)
            x.add_(x.neg(), alpha=number)
    assert [ran.count(f"aten.{name}.Tensor") for name in ("div", "add_")] == [1, 1]


def test_a_tensor_that_is_read_twice_runs_no_kernel_again(ran):
    with record():
        x, y = torch.ones(7, 4), torch.ones(7, 4)
        for _ in range(3):
            x.addcmul_(y, y)
    assert ran.count("aten.addcmul_.default") == 1


def test_steps_of_adam_run_no_kernels_of_arithmetic_again(ran):
    with record():
        _train(2)
        ran.clear()
        _train(9)
    arithmetic = ("div", "mul", "addc", "lerp", "sqrt")
    assert [name for name in ran if name.startswith(arithmetic, len("aten."))] == []


def test_what_is_served_alike_is_recorded_as_without_a_cache():
    traces = []
    for cache in (True, False):
        with record(cache=cache) as trace:
            _train(5)
        traces.append(trace)
    assert list(traces[0].ops) == list(traces[1].ops)


def test_values_of_steps_that_are_alike_are_those_of_the_cpu():
    with record():
        trained = [p.tolist() for p in _train(5)]
    assert trained == [p.tolist() for p in _train(5)]


def test_a_tensor_that_is_written_and_read_is_not_taken_for_two(ran):
    with record() as trace:
        x, y = torch.ones(7, 5), torch.ones(7, 5)
        for other in (y, x, y):
            x.addcmul_(other, y, value=0.5)
    calls = [c for c in trace.ops if c.op == "aten.addcmul_.default"]
    storages = [[t.storage_id for t in call.inputs] for call in calls]
    assert storages == [[0, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert ran.count("aten.addcmul_.default") == 2


@pytest.mark.parametrize("number", [0.5, -0.5, 0.0, -0.0, 1e-30, 1e6])
def test_each_number_is_recorded_as_it_is(number):
    with record() as trace:
        x = torch.ones(3, 7, dtype=torch.float64)
        x.mul(0.75)
        x.mul(number)
    recorded = dict(trace.ops[-1].arguments)["other"]
    assert repr(recorded) == repr(number)


def test_a_number_that_not_all_dtypes_hold_is_asked_about(ran):
    half = torch.ones(3, dtype=torch.half)
    with pytest.raises(RuntimeError, match="without overflow"):
        half.add(half, alpha=1e6)
    with record():
        x, y = torch.ones(7, 6, dtype=torch.half), torch.ones(7, 6, dtype=torch.half)
        for number in (2.0, 3.0, 1e6):
            x.add(y, alpha=number)
    assert ran.count("aten.add.Tensor") == 2


def test_integers_keep_what_a_float_makes_of_them():
    with record():
        x = torch.ones(3, 2, dtype=torch.long)
        made = [x.mul(number).dtype for number in (0.5, 1.5, 2.5)]
    assert made == [torch.float32] * 3
