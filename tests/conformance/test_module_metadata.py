"""What modules of torch's database return, beside the CPU: shapes, dtypes, strides."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from meta_magic import record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

    from tests.conformance.copies import Copies
    from tests.conformance.refused_programs import module_inputs, split, thin

pytestmark = pytest.mark.filterwarnings("ignore")


def describe(tensor):
    """Return what is compared of a tensor: strides along more than one element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, tensor.dtype, [step for n, step in steps if n > 1]


def call(module, given, device, context):
    """Return what a module returns that is built and called on a device."""
    torch.manual_seed(0)
    with context:
        (args, kwargs), called = tree_map(Copies(device), given)
        built = module(*args, **kwargs)
        returned = built(*called[0], **called[1])
        return [
            describe(leaf)
            for leaf in tree_leaves(returned)
            if isinstance(leaf, torch.Tensor)
        ]


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_a_module_returns_what_it_returns_on_the_cpu(info):
    samples = module_inputs(info.module_inputs_func, info, torch.float32)
    for sample in thin([s for s in samples if s.forward_input is not None], 3):
        given = split(sample.constructor_input), split(sample.forward_input)
        try:
            wanted = call(info.module_cls, given, "cpu", nullcontext())
        except RuntimeError:  # the CPU refuses its own sample
            continue
        met = call(info.module_cls, given, "meta", record(as_device="cpu"))
        assert met == wanted
