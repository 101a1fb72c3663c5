"""Kernels on meta that are said in one step."""

import itertools

import pytest
import torch

from meta_magic import record
from meta_magic.recording.as_device.adjustments import SHORT_KERNELS
from tests.unit.eager import assert_refused_alike

ADDMM = torch.ops.aten.addmm.default

LAYOUTS = {
    "in rows": lambda n, m, dtype: torch.ones(n, m, dtype=dtype),
    "in columns": lambda n, m, dtype: torch.ones(m, n, dtype=dtype).t(),
    "apart": lambda n, m, dtype: torch.ones(2 * n, 3 * m, dtype=dtype)[::2, ::3],
    "of one row": lambda n, m, dtype: torch.ones(1, m, dtype=dtype).expand(n, m),
}
SIZES = [(2, 3, 4), (1, 3, 1), (0, 3, 2), (2, 0, 3), (5, 1, 1)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def describe(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def call_on_meta(*tensors, **scales):
    short = SHORT_KERNELS["aten.addmm.default"]
    return short(*(tensor.to("meta") for tensor in tensors), **scales)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_with_a_bias_is_as_on_the_cpu(sizes, dtype):
    n, k, m = sizes
    for make_a, make_b in itertools.product(LAYOUTS.values(), repeat=2):
        for bias in (torch.ones(m, dtype=dtype), torch.ones(1, dtype=dtype)):
            call = bias, make_a(n, k, dtype), make_b(k, m, dtype)
            assert describe(call_on_meta(*call)) == describe(ADDMM(*call))


@pytest.mark.parametrize(
    "sizes",
    [((3,), (2, 3), (3, 4)), ((4,), (2, 3), (2, 4)), ((4,), (2, 3, 1), (3, 4))],
    ids=str,
)
def test_what_does_not_fit_is_torchs_own_error(sizes):
    call = [torch.ones(size) for size in sizes]
    with pytest.raises(RuntimeError):
        ADDMM(*call)
    with pytest.raises(RuntimeError):
        call_on_meta(*call)


def test_normal_numbers_are_written_once_into_the_tensor_itself():
    real = torch.empty(3, 4).normal_()
    with record():
        drawn = torch.empty(3, 4)
        assert drawn.normal_(1.0, 2.0) is drawn
        assert drawn._version == real._version


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.empty(n).normal_(0.0, -1.0),
        lambda n: torch.empty(n, dtype=torch.int64).normal_(),
    ],
)
@pytest.mark.parametrize("n", [3, 1 << 20])
def test_normal_numbers_are_refused_as_on_the_cpu(draw, n):
    assert_refused_alike(lambda: draw(n))
