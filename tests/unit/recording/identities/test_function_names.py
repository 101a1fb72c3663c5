"""Functions are called as their users write them."""

import pytest
import torch
import torch.nn.functional as F

from meta_magic.recording.identities.call_sites import describe_function


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.mm, "torch.mm"),
        (torch.matmul, "torch.matmul"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__"),
        (torch.linalg.svd, "torch.linalg.svd"),
        (F.linear, "torch.nn.functional.linear"),
        (torch.nn.init.normal_, "torch.nn.init.normal_"),
        (None, None),
    ],
)
def test_a_function_has_its_public_name(function, name):
    assert describe_function(function) == name
