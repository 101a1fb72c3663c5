"""When a storage is born, grows and is freed, where no operator says it."""

import pytest
import torch

from meta_magic.session.record import record


def test_what_is_resized_grows_and_does_not_shrink():
    with record() as trace:
        x = torch.empty(10)
        x.resize_(20)
        x.resize_(5)
    assert trace.memory.live_nbytes == (40, 80, 80)


def test_what_is_written_to_grows():
    with record() as trace:
        out = torch.empty(0)
        torch.add(torch.ones(4), 1, out=out)
    assert trace.memory.live_nbytes == (0, 16, 32)


def test_a_storage_that_is_resized_itself_has_other_bytes_from_then_on():
    with record() as trace:
        x = torch.ones(10)
        x.untyped_storage().resize_(0)
        y = torch.ones(1)
        x.untyped_storage().resize_(80)
        y + 1
    assert trace.memory.live_nbytes == (40, 4, 88)


def test_resizing_is_as_before_after_a_recording():
    with record():
        torch.ones(1).untyped_storage().resize_(0)
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_tensor_of_values_lives_from_where_it_is_made():
    with record() as trace:
        x = torch.tensor([1.0, 2.0])
        torch.ones(1)
        x + 1
    assert trace.memory.live_nbytes[-2:] == (12, 16)


def test_a_tensor_of_values_that_no_operator_meets_takes_memory_too():
    with record() as trace:
        x = torch.tensor([1, 2])
        torch.ones(1)
        del x
        torch.ones(1)
    assert trace.memory.live_nbytes[-2:] == (20, 4)


@pytest.mark.parametrize("index", [0, (0, 1)])
def test_a_number_that_is_assigned_is_a_tensor_first_where_torch_makes_one(index):
    with record() as trace:
        x = torch.zeros(2, 2)
        x[index] = 7.0
    is_tensor = trace.ops[-1].op != "aten.fill_.Scalar"  # till torch 2.13
    assert set(trace.memory.live_nbytes[1:]) == {16 + 4 * is_tensor}


def test_the_whole_of_a_storage_that_is_met_by_a_view_counts():
    x = torch.ones(100, device="meta")
    with record() as trace:
        x[:10] + 1
    assert trace.memory.live_nbytes == (400, 440)


def test_what_lies_in_circles_is_freed_by_the_collector():
    class Node:
        def __init__(self):
            self.me, self.x = self, torch.ones(1000)

    with record() as trace:
        for _ in range(4_000):  # 16 MB; on the CPU 1.4, or 6 from Python 3.13 on
            Node()
    assert trace.memory.peak_nbytes < 8_000_000


def test_coordinates_themselves_take_no_bytes():
    with record() as trace:
        positions = torch.zeros(1, 2, dtype=torch.long)
        values, options = torch.ones(2), {"check_invariants": False}
        torch.sparse_coo_tensor(positions, values, (1000,), **options)
    assert trace.memory.peak_nbytes == 16 + 8
