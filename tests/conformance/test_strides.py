"""Strides that torch's kernels on meta choose by device, beside the CPU's."""

import pytest
import torch

from meta_magic import record


def describe(returned):
    """Return what is to be the same of all tensors returned."""
    many = [returned] if isinstance(returned, torch.Tensor) else returned
    return [(t.shape, t.dtype, t.stride()) for t in many]


STRIDES = {
    "svd": lambda: torch.linalg.svd(torch.randn(3, 5)),
    "eig": lambda: torch.linalg.eig(torch.randn(5, 5)),
    "rfftn": lambda: torch.fft.rfftn(torch.randn(2, 3, 4)),
    "nonzero_static": lambda: torch.nonzero_static(torch.ones(3, 4), size=5),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_of_the_cpu_as_on_the_cpu(name):
    wanted = describe(STRIDES[name]())
    with record(as_device="cpu"):
        met = STRIDES[name]()
    assert describe(met) == wanted


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_otherwise_as_on_meta(name):
    """Fails for all when meta kernels need not be told the device any more."""
    with record(as_device="meta"):
        met = STRIDES[name]()
    assert describe(met) != describe(STRIDES[name]())


def last(*shape):
    """Return ones whose second dimension comes last in memory."""
    return torch.ones(shape).to(memory_format=torch.channels_last)


def column(n=20):
    """Return one column of many: the stride of its size of 1 means nothing."""
    return torch.ones(10, n).t()[:, :1]


def gradient(operator, *settings):
    """Return a gradient beside whose rows the channels of what it is for come last."""
    grad, a = torch.ones(2, 16, 40, 40), last(2, 16, 40, 40)
    return operator(grad, a, *settings)


aten = torch.ops.aten
CHOSEN = {
    "gradient of hardswish": lambda: gradient(aten.hardswish_backward),
    "gradient of hardsigmoid": lambda: gradient(aten.hardsigmoid_backward),
    "gradient of hardtanh": lambda: gradient(aten.hardtanh_backward, 0, 6),
    "gradient of elu": lambda: gradient(
        lambda grad, a: aten.elu_backward(grad, 1, 1, 1, False, a)
    ),
    "gradient of leaky_relu": lambda: gradient(aten.leaky_relu_backward, 0.1, False),
    "gradient of softplus": lambda: gradient(aten.softplus_backward, 1, 20),
    "gradient of mish": lambda: gradient(aten.mish_backward),
    "gradient of gelu": lambda: gradient(aten.gelu_backward),
    "a power of one": lambda: torch.pow(True, last(4, 3, 3, 4)),
    "norm of one pixel": lambda: torch.batch_norm(
        torch.nn.functional.adaptive_avg_pool2d(last(4, 4, 3, 3), 1),
        *(None, None, None, None, True, 0.1, 1e-5, False),
    ),
    "norm of rows": lambda: torch.batch_norm(
        torch.ones(5, 4, 3).mT, *(None, None, None, None, True, 0.1, 1e-5, False)
    ),
    "sign of a number": lambda: torch.copysign(torch.ones(5, 10).t(), torch.tensor(1)),
    "column": lambda: torch.deg2rad(column()),
    "column of many": lambda: torch.deg2rad(column(2**18)),
    "remainder of integers": lambda: torch.remainder(column().long(), 3),
    "column and number": lambda: torch.heaviside(column(), torch.tensor(0.5)),
    "diagonals of columns": lambda: torch.diag_embed(column()),
    "draws like a column": lambda: torch.randn_like(column()),
    "norm that keeps statistics": lambda: torch.ops.aten._native_batch_norm_legit(
        torch.ones(5, 4, 3).mT,
        *(None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5),
    ),
    "quotient of integers": lambda: torch.floor_divide(
        torch.ones(6, dtype=torch.long).as_strided((1, 3, 1), (1, 2, 1)),
        torch.tensor([1, 2]),
    ),
    "columns of no elements": lambda: torch.ones(1, 0, 1) + 1,
    "no elements": lambda: torch.zeros_like(torch.ones(2, 0, 6)[:1, :, ::2]),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_strides_are_chosen_as_by_the_kernels_of_the_cpu(name):
    wanted = describe(CHOSEN[name]())
    with record(as_device="cpu"):
        met = CHOSEN[name]()
    assert describe(met) == wanted


APART = {
    "column": lambda: torch.ones(3, 4)[:, 1],
    "columns": lambda: torch.arange(24.0).view(2, 3, 4)[:, 1, ::2],
    "repeated": lambda: torch.arange(3.0).expand(2, 3),
    "complex": lambda: torch.ones(4, 4, dtype=torch.complex64).narrow(1, 0, 1),
    "empty": lambda: torch.ones(3, 0)[:, ::2],
}


@pytest.mark.parametrize("name", APART)
def test_an_array_has_the_strides_of_the_cpu(name):
    wanted = APART[name]().numpy()
    with record(as_device="cpu"):
        met = APART[name]().numpy()
    assert met.strides == wanted.strides
    assert met.tolist() == wanted.tolist()
