"""Operators that torch takes apart above a mode, but not in inference mode."""

import pytest
import torch

from meta_magic import record

PARTS = {
    "chunk": lambda x: x.chunk(2, -1),
    "chunk of a chunk": lambda x: x.chunk(2, -1)[0].chunk(2),
    "narrow": lambda x: (x.narrow(0, 1, 2),),
    "split": lambda x: x.split(2),
    "flatten": lambda x: (x[None].flatten(),),
}


def take(name, *, is_inside):
    torch.manual_seed(3)
    x = torch.rand(4, 6)
    with torch.inference_mode():
        parts = PARTS[name](x * 1 if is_inside else x)
        return [(p.is_inference(), p._is_view(), p.tolist()) for p in parts]


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_in_inference_mode_a_part_is_what_it_is_on_the_cpu(name, is_inside):
    wanted = take(name, is_inside=is_inside)
    with record(as_device="cpu"):
        met = take(name, is_inside=is_inside)
    assert met == wanted
