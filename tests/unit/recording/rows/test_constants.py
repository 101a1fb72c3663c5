"""Constants of a recording: values that came from outside."""

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import materialize, record

both = pytest.mark.parametrize("cache", [True, False])


def test_python_values_are_one_constant_each():
    with record() as trace:
        kept = [torch.tensor([1.0, 2.0]), torch.tensor(3), torch.ones(2)]
    contents = [
        np.frombuffer(c.data, np.uint8).tobytes() for c in trace.program.constants
    ]
    assert contents == [
        np.array([1, 2], np.float32).tobytes(),
        np.array(3, np.int64).tobytes(),
    ]
    assert len(kept) == 3


@both
def test_values_are_kept_although_addresses_come_again(cache):
    with record(cache=cache):
        module = nn.Module()
        module.kept = []
        for number in range(50):
            torch.ones(1).add_(torch.tensor([1.0]))
            module.kept.append(torch.tensor([float(number)]) * 2)
    materialize(module)
    assert [tensor.item() for tensor in module.kept] == list(range(0, 100, 2))
