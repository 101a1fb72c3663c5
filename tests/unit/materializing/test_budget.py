"""Too little memory: an error with numbers, before anything is made."""

import re

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import is_untouched, tensors_of
from tests.unit.materializing.refusals import holding


def huge():
    """A hundred terabytes, and six smaller ones."""
    with record():
        return nn.ModuleDict(
            {
                "middle": nn.Linear(1_000, 1_000, bias=False),
                "huge": nn.Linear(5_000_000, 5_000_000, bias=False),
                **{f"n{i}": nn.Linear(100, i, bias=False) for i in range(10, 15)},
            }
        )


@pytest.mark.parametrize("init", INITS)
def test_too_little_memory_is_an_error_before_anything_is_made(init):
    made = huge()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init=init)
    # 25e12 elements of 4 bytes are 90.9 TiB.
    assert re.search(
        r"takes 90\.9 TiB .* and [\d.,]+ [GMK]iB is free", str(caught.value)
    )
    assert is_untouched(made, before)


def test_too_little_memory_names_the_five_largest_tensors():
    with pytest.raises(MaterializeError) as caught:
        materialize(huge())
    names = re.findall(r"(?:huge|middle|n\d+)\.weight", str(caught.value))
    assert names == [
        "huge.weight",
        "middle.weight",
        "n14.weight",
        "n13.weight",
        "n12.weight",
    ]


def test_too_little_memory_says_what_to_do():
    with pytest.raises(MaterializeError, match="Materialize a submodule"):
        materialize(huge())


def test_a_small_part_of_a_huge_module_is_no_problem():
    made = huge()
    materialize(made["middle"])
    assert not made["middle"].weight.is_meta


def test_memory_that_is_used_on_the_way_counts():
    with record():
        made = holding(torch.ones(5_000_000, 5_000_000).sum(0))
    with pytest.raises(MaterializeError, match="takes 90"):
        materialize(made)
