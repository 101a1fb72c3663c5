"""Numbers of tensors and storages: who shares one, and who does not."""

import torch

from meta_magic import record


def test_meta_storages_at_address_zero_are_told_apart():
    with record() as trace:
        a, b = torch.empty(2), torch.empty(2)
        torch.add(a, b)
    left, right = trace.ops[-1].inputs
    assert a.data_ptr() == b.data_ptr() == 0  # outside of the cell
    assert left.storage_id != right.storage_id
