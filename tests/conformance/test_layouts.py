"""Operators of torch's database on inputs that lie otherwise, beside the CPU.

One sample of every third, laid out in two of six ways in turn; all are run by
``python -m tests.conformance.layout_sweep``.
"""

import warnings
from itertools import islice

import pytest
import torch

from meta_magic import record

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

    wanted = count()
    with record():
        assert count() == wanted


@pytest.mark.parametrize("arguments", [(7,), (2,), (1,), (7, False), (7, True, 3.0)])
def test_the_storage_of_a_window_is_as_large_as_on_the_cpu(arguments):
    def count():
        return torch.kaiser_window(*arguments).untyped_storage().nbytes()

    wanted = count()
    with record():
        assert count() == wanted


def test_a_lazily_negated_tensor_makes_others_that_lie_as_on_the_cpu():
    def read_stride():
        return torch.empty_like(torch.ones(1, dtype=torch.cfloat).conj().imag).stride()

    wanted = read_stride()
    with record():
        assert read_stride() == wanted
