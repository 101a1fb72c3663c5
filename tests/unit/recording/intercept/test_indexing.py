"""What is written at an index."""

import numpy as np
import pytest
import torch

from meta_magic import record
from tests.unit.eager import Names


@pytest.mark.parametrize(
    "index", [0, slice(1, 3), (slice(None), 0), ..., (None, 1), (1, 2)], ids=str
)
@pytest.mark.parametrize("value", [7, 0.5, True, np.float64(2), np.int64(3)], ids=str)
def test_a_number_written_at_an_index_is_the_operator_of_the_cpu(index, value):
    def write():
        x = torch.zeros(4, 4)
        x[index] = value
        return x.sum().item()

    with Names() as real:
        wanted = write()
    with record(as_device="cpu") as trace:
        met = write()
    assert met == wanted
    names = [op.op for op in trace.ops if "lift" not in op.op]
    assert names == [op for op in real.ops if "lift" not in op]
