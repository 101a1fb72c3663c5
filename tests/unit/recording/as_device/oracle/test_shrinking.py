"""Calls made smaller."""

import pytest
import torch

from meta_magic.recording.as_device.oracle.shrinking import is_small, shrink

aten = torch.ops.aten


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS = {
    "product": (aten.mm.default, meta(4096, 50257), meta(50257, 1024)),
    "convolution": (
        *(aten.convolution.default, meta(64, 96, 512, 512), meta(192, 48, 3, 3), None),
        *([1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    ),
    "a number that is a size": (aten.topk.default, meta(9000, 7000), 7000),
    "lists": (aten.cat.default, [meta(4096, 512), meta(4096, 1024)], 1),
}


def make_smaller(func, *args):
    tensors = [t for a in args for t in (a if isinstance(a, list) else [a])]
    found = [t for t in tensors if isinstance(t, torch.Tensor)]
    smaller = shrink(func, (args, {}), found)
    return smaller and smaller.build("cpu")


@pytest.mark.parametrize("name", CALLS)
def test_what_meta_accepts_runs_on_the_cpu_with_smaller_sizes(name):
    func, *given = CALLS[name]
    args, kwargs = make_smaller(func, *given)
    returned = func(*args, **kwargs)
    first = returned if isinstance(returned, torch.Tensor) else returned[0]
    assert first.is_cpu
    assert is_small([first.shape])


def test_sizes_that_are_equal_stay_so():
    (a, b), _ = make_smaller(aten.mm.default, meta(9000, 7000), meta(7000, 9000))
    assert a.shape == b.shape[::-1]


def test_the_order_of_strides_stays():
    (a, _), _ = make_smaller(aten.mm.default, meta(9000, 7000).t(), meta(9000, 7000))
    assert a.stride(0) == 1
    assert a.stride(1) > 1


def test_what_meta_refuses_at_every_smaller_size_is_not_made_smaller():
    assert make_smaller(aten.mm.default, meta(1_000_003, 9), meta(11, 5)) is None


def test_an_operator_that_might_not_check_its_sizes_is_not_given_others():
    assert make_smaller(aten.pixel_shuffle.default, meta(64, 64, 512, 512), 4) is None


def test_many_elements_and_much_work_are_not_small():
    assert is_small([(2, 3), (3, 4)])
    assert not is_small([(1000, 1000)])
    assert not is_small([(2, 60_000), (60_000,)])
