"""The dtype that materialize() is asked for."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import Shared
from tests.unit.materializing.refusals import holding


def test_dtype_casts_what_is_floating():
    real, made, _, _ = build_twice(lambda: nn.BatchNorm1d(4))
    materialize(made, dtype=torch.float16)
    assert_bit_equal(made, real.to(torch.float16))


def test_dtype_leaves_integers():
    _, made, _, _ = build_twice(lambda: nn.BatchNorm1d(4))
    materialize(made, dtype=torch.bfloat16)
    assert made.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float32])
def test_dtype_gives_what_to_would_give(dtype):
    real, made, _, _ = build_twice(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    materialize(made, dtype=dtype)
    assert_bit_equal(made, real.to(dtype))


def test_dtype_keeps_ties_and_views():
    _, made, _, _ = build_twice(Shared)
    materialize(made, dtype=torch.float16)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]


@pytest.mark.parametrize("init", sorted({*INITS} - {"replay"}))
def test_dtype_casts_without_a_replay(init):
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    report = materialize(made, init=init, dtype=torch.float16)
    assert made.weight.dtype == torch.float16
    assert report.nbytes == (12 + 4) * 2


def test_a_complex_tensor_stays_complex_in_a_cast():
    with record():
        made = holding(torch.tensor([1 + 2j]))
    materialize(made, dtype=torch.float64)
    assert (made.odd.dtype, made.odd.tolist()) == (torch.complex128, [1 + 2j])


def test_a_cast_of_bytes_that_are_read_as_two_dtypes_is_an_error_that_names_both():
    def build_two():
        module = nn.Module()
        module.register_buffer("floats", torch.ones(4))
        module.register_buffer("integers", module.floats.view(torch.int32))
        return module

    with record():
        made = build_two()
    with pytest.raises(MaterializeError, match=r"floats, integers read one storage"):
        materialize(made, dtype=torch.float16)


def test_two_dtypes_on_the_same_bytes_are_kept_without_a_cast():
    def build_two():
        module = nn.Module()
        module.register_buffer("floats", torch.ones(4))
        module.register_buffer("integers", module.floats.view(torch.int32))
        return module

    real, made, _, _ = build_twice(build_two)
    materialize(made)
    assert_bit_equal(made, real)
