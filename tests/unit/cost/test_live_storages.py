"""What is alive at one moment, by module and by line."""

import pytest
import torch
from torch import nn

from meta_magic.session.record import record


@pytest.fixture(scope="module")
def living():
    with record() as trace:
        model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 2))
        x = torch.ones(5, 10)
        y = model(x)
    assert y.shape == (5, 2)
    return trace.memory.at(-1)


def test_parameters_and_results_belong_to_their_modules(living):
    assert living.by_module == {
        (0, "0"): 400 + 200,
        (0, "1"): 80 + 8 + 40,
        None: 200,
    }


def test_each_line_has_what_it_made(living):
    first = min(living.by_line)
    assert living.by_line == {first: 488, first + 1: 200, first + 2: 240}


def test_a_storage_says_which_operator_made_it(living):
    largest = living.storages[0]
    assert (largest.nbytes, largest.category, largest.place) == (
        400,
        "parameter",
        "cpu",
    )
    assert (largest.op, largest.index) == ("aten.empty.memory_format", 0)


def test_the_table_has_a_row_for_each_storage(living):
    table = living.to_pandas()
    assert list(table["nbytes"]) == sorted(table["nbytes"], reverse=True)
    assert table["nbytes"].sum() == living.nbytes == 928
    assert list(table.columns)[:3] == ["storage_id", "nbytes", "category"]


def test_the_text_says_how_much_of_what_there_is(living):
    # Of operators there are two for each of three parameters, one, and two a layer.
    assert repr(living) == (
        "<LiveStorages: parameter 488 bytes, input 200 bytes, saved 200 bytes, "
        "output 40 bytes after operator 10>"
    )


def test_an_older_storage_has_the_operator_that_first_met_it():
    with record():
        x = torch.ones(10)
    with record() as trace:
        x + 1
    older = next(s for s in trace.memory.at(0).storages if s.category == "input")
    assert (older.index, older.op) == (0, "aten.add.Tensor")
