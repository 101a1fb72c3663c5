"""Operators of torch's database on inputs that lie otherwise, beside the CPU.

One sample of every third, laid out in two of six ways in turn; all are run by
``python -m tests.conformance.layout_sweep``.
"""

import warnings
from itertools import islice

import pytest
import torch

from meta_magic import record, verify
from tests.unit.eager import assert_same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance.layout_sweep import LAYOUTS, MODES, find_differences
    from tests.conformance.operator_samples import OPERATORS, full_name

pytestmark = pytest.mark.filterwarnings("ignore")

BY_VALUES = "error: , not "
"""What only values refuse, as singular matrices: it is refused when they are read."""

CSR = ("sparse.mm.reduce", "sparse.sampled_addmm")
"""Take a sparse matrix by rows, of which meta has no kernels."""

VERSIONS = (
    *("linalg.matrix_rank", "linalg.matrix_rank.hermitian", "nn.functional.linear"),
    *("nn.functional.linear_cross_entropy.chunked",),
    *("nn.functional.linear_cross_entropy.chunked_none",),
)
"""Composed otherwise where a mode looks on: their results count other writes."""

MENDED = (
    *("nn.functional.max_pool1d", "nn.functional.mse_loss"),
    *("nn.functional.smooth_l1_loss", "nn.functional.soft_margin_loss"),
    *("nn.functional.binary_cross_entropy", "linalg.lstsq", "slice_scatter"),
)
"""Of these all samples are run."""


def find_all(op, layouts, modes, limit):
    """Return all that differs, in words."""
    names = {"error": CSR, "versions": VERSIONS}
    samples = [*islice(op.sample_inputs("cpu", torch.float32), limit)]
    return [
        f"{layout}, {mode}: {text}"
        for layout in layouts
        for mode in modes
        for sample in samples
        for text in find_differences(op, sample, layout, mode)
        if text and not text.startswith(BY_VALUES)
        if op.full_name not in names.get(text.partition(":")[0], ())
    ]


floating = [op for op in OPERATORS if torch.float32 in op.dtypes]


sampled = floating[::3]


@pytest.mark.parametrize("number", range(len(sampled)), ids=map(full_name, sampled))
def test_results_lie_as_on_the_cpu_however_the_inputs_do(number):
    layouts = [*LAYOUTS][number % 3 :: 3]
    assert find_all(sampled[number], layouts, ["plain"], 1) == []


mended = [op for op in floating if op.full_name in MENDED]


@pytest.mark.parametrize("op", mended, ids=full_name)
def test_they_do_in_each_mode(op):
    assert find_all(op, ["in rows", "transposed", "offset"], MODES, 12) == []


def test_one_hot_counts_its_writes_as_on_the_cpu():
    def count():
        return torch.nn.functional.one_hot(torch.tensor([0, 2, 1]), 3)._version

    assert_same(count)


@pytest.mark.parametrize("arguments", [(7,), (2,), (1,), (7, False), (7, True, 3.0)])
def test_the_storage_of_a_window_is_as_large_as_on_the_cpu(arguments):
    def count():
        return torch.kaiser_window(*arguments).untyped_storage().nbytes()

    assert_same(count)


def test_a_lazily_negated_tensor_makes_others_that_lie_as_on_the_cpu():
    def read_stride():
        return torch.empty_like(torch.ones(1, dtype=torch.cfloat).conj().imag).stride()

    assert_same(read_stride)


# Strides that torch's kernels on meta choose by device, beside the CPU's


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


@pytest.mark.parametrize("name", STRIDES | CHOSEN)
def test_strides_are_those_of_the_cpu_as_on_the_cpu(name):
    make = (STRIDES | CHOSEN)[name]
    wanted = describe(make())
    with record(as_device="cpu"):
        met = make()
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


# What is computed after norms, whose kernels differ from device to device


def test_training_with_norms_as_on_the_cpu_is_what_the_cpu_does():
    with record(as_device="cpu") as trace:
        model = torch.nn.Sequential(
            *(torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
        ).bfloat16()
        model[2].eval()
        model(torch.randn(3, 2, 4).bfloat16()).sum().backward()
    assert verify(trace, "cpu").empty


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_a_value_after_a_norm_of_another_device_is_known(device):
    """The statistics are other tensors there, and nothing reads them."""

    def compute():
        torch.manual_seed(0)
        norms = torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(2).eval()
        return torch.nn.Sequential(*norms).bfloat16()(torch.randn(3, 2, 4).bfloat16())

    assert_same(lambda: compute().sum().item(), as_device=device)
