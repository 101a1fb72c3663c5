"""Refusals that speak of values, and those that speak of metadata."""

import pytest
import torch

from meta_magic.recording.as_device.oracle.oracle import mentions_values

OF_VALUES = {
    "embedding": lambda: torch.embedding(torch.ones(2, 3), torch.tensor([2])),
    "class": lambda: torch.nn.functional.nll_loss(
        torch.ones(2, 3), torch.tensor([0, 3])
    ),
    "gather": lambda: torch.gather(torch.ones(2), 0, torch.tensor([2])),
    "singular": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "not definite": lambda: torch.linalg.cholesky(-torch.eye(2)),
    "probability": lambda: torch.multinomial(-torch.ones(2), 1),
    "pivots": lambda: torch.lu_unpack(
        torch.ones(2, 2), torch.zeros(2, dtype=torch.int32)
    ),
    "lengths": lambda: torch.segment_reduce(
        torch.ones(3), "sum", lengths=torch.tensor([2])
    ),
}
OF_METADATA = {
    "dtype": lambda: torch.ones(2, 2) @ torch.ones(2, 2).double(),
    "shape": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    "dimension": lambda: torch.ones(2).sum(2),
    "index dtype": lambda: torch.embedding(torch.ones(2, 3), torch.ones(1)),
    "mask": lambda: torch.ones(2)[torch.ones(3, dtype=torch.bool)],
    "overlap": lambda: torch.ones(1).expand(3).add_(torch.ones(3)),
    "padding": lambda: torch.nn.functional.pad(torch.ones(1, 1, 2), (3, 3), "reflect"),
    "pivots' dtype": lambda: torch.linalg.ldl_solve(
        torch.ones(2, 2), torch.ones(2), torch.ones(2, 1)
    ),
    "lengths of other dimensions": lambda: torch.segment_reduce(
        torch.ones(3), "sum", lengths=torch.ones(2, 2, dtype=torch.long)
    ),
    "an operator's name": lambda: torch.ones(2, dtype=torch.cfloat).isneginf(),
    "bounds of a dtype": lambda: torch.randint_like(torch.ones(2).bool(), 9),
    "no kernel": lambda: torch.ones(2, dtype=torch.long).exponential_(),
}


def catch(call):
    with pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", OF_VALUES)
def test_what_values_decide_is_no_refusal(name):
    assert mentions_values(catch(OF_VALUES[name]))


@pytest.mark.parametrize("name", OF_METADATA)
def test_what_metadata_decides_is_a_refusal(name):
    assert not mentions_values(catch(OF_METADATA[name]))


def test_too_little_memory_is_no_refusal():
    assert mentions_values(MemoryError())
