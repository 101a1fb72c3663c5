"""``meta_like``: a tensor on meta that is like a real one."""

import pytest
import torch
from torch import nn

from meta_magic import meta_like, record


def test_shape_stride_offset_and_dtype_are_kept():
    real = torch.randn(4, 6, dtype=torch.float64).t()[1:, ::2]
    like = meta_like(real)
    assert like.is_meta
    assert (like.shape, like.stride()) == (real.shape, real.stride())
    assert (like.storage_offset(), like.dtype) == (real.storage_offset(), real.dtype)


def test_a_view_has_a_base_of_the_same_size():
    base = torch.randn(3, 4)
    like = meta_like(base[1])
    assert like._base.shape == (3, 4)
    assert like.untyped_storage().nbytes() == base.untyped_storage().nbytes()


def test_a_parameter_stays_one():
    like = meta_like(nn.Parameter(torch.ones(2), requires_grad=False))
    assert isinstance(like, nn.Parameter)
    assert not like.requires_grad


def test_a_sparse_tensor_stays_one():
    assert meta_like(torch.eye(3).to_sparse()).layout is torch.sparse_coo


def test_what_is_lifted_meets_the_tensors_of_a_cell():
    real = torch.ones(2, 3)
    with record() as trace:
        y = meta_like(real) @ torch.ones(3, 4)
    assert y.shape == (2, 4)
    assert trace.ops[-1].op == "aten.mm.default"


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="takes a tensor, not a list"):
        meta_like([1, 2])
