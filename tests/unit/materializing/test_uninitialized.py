"""What a replay leaves without values: memory that nothing in the cell filled."""

import pytest
import torch

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import Raw, holding


def test_replay_reports_what_the_cell_left_uninitialized():
    _, made, _, _ = build_twice(Raw)
    report = materialize(made)
    assert (report.uninitialized, report.names("replay")) == (("weight",), ("bias",))


UNINITIALIZED = {
    "in place": lambda: torch.empty(3).mul_(2),
    "masked_fill_": lambda: torch.empty(4).masked_fill_(torch.arange(4) > 1, 0.0),
    "index_fill_": lambda: torch.empty(4).index_fill_(0, torch.tensor([0]), 1.0),
    "copied": lambda: torch.zeros(3).copy_(torch.empty(3)),
    "permuted": lambda: torch.empty_permuted((3,), (0,)),
}


@pytest.mark.parametrize("name", UNINITIALIZED)
def test_what_depends_on_raw_memory_is_marked(name):
    with record():
        made = holding(made=UNINITIALIZED[name]())
    assert materialize(made).uninitialized == ("made",)


def test_what_depends_on_raw_memory_of_an_earlier_recording_is_marked():
    with record():
        x = torch.empty(3)
    with record():
        made = holding(made=x * 2)
    assert materialize(made).uninitialized == ("made",)


def test_memory_that_out_fills_is_not_marked():
    with record():
        made = holding(made=torch.add(torch.ones(3), 1, out=torch.empty(3)))
    assert materialize(made).uninitialized == ()


GAPS = {
    "filled": lambda x: x.fill_(3),
    "copied": lambda x: x.copy_(torch.arange(6.0).view(2, 3)),
    "row by row": lambda x: (x[0].fill_(1), x[1].fill_(2)),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("stride", [(5, 1), (8, 2), (1, 4)])
def test_gaps_between_elements_are_not_marked(name, stride):
    def build():
        x = torch.empty_strided((2, 3), stride)
        GAPS[name](x)
        return holding(made=x)

    real, made, _, _ = build_twice(build)
    assert materialize(made).uninitialized == ()
    assert_bit_equal(made, real)


def test_elements_beside_gaps_that_nothing_filled_are_marked():
    with record():
        x = torch.empty_strided((2, 3), (5, 1))
        x[0].fill_(1)
        made = holding(made=x)
    assert materialize(made).uninitialized == ("made",)


def test_filling_row_by_row_is_planned_in_no_time():
    with record():
        rows = torch.empty(3000, 64)
        for i in range(3000):
            rows[i] = 1.0
        made = holding(made=rows)
    assert materialize(made).uninitialized == ()
    assert made.made.sum() == 3000 * 64
