"""A refusal that is caught keeps nothing alive: no frame holds its own error."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import record

CALLS = {
    "refused by the CPU alone": lambda: torch.ones(2, 2) @ torch.ones(2, 2).half(),
    "reworded": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    "a function reworded": lambda: nn.Linear(3, 4)(torch.ones(2, 5)),
    "for a value": lambda: functional.embedding(torch.tensor([1, 7]), torch.ones(4, 3)),
    "in place": lambda: torch.ones(2).add_(torch.ones(3)),
    "a view": lambda: torch.ones(6).view(4),
    "where a value is read": lambda: torch.multinomial(torch.zeros(3), 2).tolist(),
}


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_lived_where_a_call_was_refused_goes_with_it(call, cache):
    def catch():
        kept = nn.Identity()
        try:
            call()
        except (RuntimeError, IndexError):
            return weakref.ref(kept)

    gc.disable()
    try:
        with record(cache=cache):
            assert [catch()() for _ in range(2)] == [None, None]
    finally:
        gc.enable()
