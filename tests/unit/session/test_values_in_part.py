"""Values of memory of which a part was written, as a buffer that a loop fills."""

import pytest
import torch

from meta_magic import MissingValueError, record

READS = {
    "sum": lambda x: x[:2].sum().item(),
    "list": lambda x: x[:2].tolist(),
    "product": lambda x: (x[:2] * 2).tolist(),
    "element": lambda x: x[1].item(),
    "column": lambda x: x.view(2, 3)[:, 0].tolist(),
}


def fill(x):
    x[:2] = torch.tensor([3.0, 4.0])
    x[3] = 5.0
    return x


@pytest.mark.parametrize("name", READS)
def test_what_was_written_of_a_buffer_has_its_values(name):
    wanted = READS[name](fill(torch.zeros(6)))
    with record():
        assert READS[name](fill(torch.empty(6))) == wanted


@pytest.mark.parametrize("name", READS)
def test_what_was_written_in_an_earlier_cell_of_a_buffer_has_its_values(name):
    wanted = READS[name](fill(torch.zeros(6)))
    with record():
        x = fill(torch.empty(6))
    with record():
        assert READS[name](x) == wanted


def test_what_out_was_given_of_a_buffer_has_its_values():
    with record():
        x = torch.empty(8)
        torch.cat([torch.ones(2), torch.zeros(1)], out=x[:3])
        assert (x[:3] * 2).tolist() == [2, 2, 0]


READS_MORE = {
    "element": lambda x: x[2].item(),
    "sum": lambda x: x[:3].sum().item(),
    "after a step": lambda x: (x[0].item(), x[1:3].tolist()),
    "computed": lambda x: (x + 1)[:2].tolist(),
    "written over": lambda x: x.add_(1)[:2].tolist(),
}


@pytest.mark.parametrize("name", READS_MORE)
def test_what_was_not_written_of_a_buffer_is_no_value(name):
    refused = pytest.raises(MissingValueError, match=r"since aten.empty.* in line \d+")
    with record(), refused:
        READS_MORE[name](fill(torch.empty(6)))


def test_a_loop_that_fills_a_buffer_makes_each_call_once():
    with record() as trace:
        x = torch.empty(9)
        for step in range(9):
            x[step] = torch.full((), float(step)).exp()
            x[: step + 1].sum().item()
    costs = [evaluation.n_calls for evaluation in trace.program.evaluations]
    # Run forward from the fifth value on, with the calls that no value needs.
    assert costs[1:] == costs[1:2] * 3 + costs[4:5] * 5
