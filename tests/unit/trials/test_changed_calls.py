"""Calls at some lines do something else, and no others."""

import torch

from meta_magic import record
from meta_magic.trials.proofs import ChangedCalls, list_spots


def double(function, *args, **kwargs):
    return function(*args, **kwargs) * 2


def compute(x):
    first = x.exp()
    second = x.exp()
    return first, second, torch.exp(x)


def find_place(trace, index):
    """Return the place of a call, as an index into those of the program."""
    return int(trace.columns.place[index])


def test_one_function_is_changed_at_one_line():
    x = torch.zeros(1)
    with record() as trace:
        compute(torch.zeros(1))
    with ChangedCalls(list_spots(trace.program, [find_place(trace, 1)]), double):
        assert [*map(float, compute(x))] == [2, 1, 1]
    assert [*map(float, compute(x))] == [1, 1, 1]


def test_what_torch_calls_itself_is_of_the_line_that_called_torch():
    with record() as trace:
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    (spot,) = list_spots(trace.program, [find_place(trace, len(trace) - 1)])
    assert spot[0] == "torch.nn.functional.linear"
    assert spot[1] == __file__
