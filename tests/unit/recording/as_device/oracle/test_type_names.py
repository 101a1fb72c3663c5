"""Names of types in errors."""

import pytest
import torch

from meta_magic import record
from meta_magic.recording.as_device.oracle.cpu_refusals import name_types


def overwrite(dtype=torch.float32):
    """Write what a backward needs."""
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    saved = weight.exp()
    saved.add_(1)
    return saved.sum()


def convolve():
    weight = torch.ones(1, 1, 2, dtype=torch.complex64)
    return torch.nn.functional.conv1d(torch.ones(1, 1, 3), weight)


CALLS = {
    "backward": lambda: overwrite().backward(),
    "grad": lambda: torch.autograd.grad(overwrite(), torch.ones(1)),
    "without a class": lambda: overwrite(torch.bfloat16).backward(),
    "input and weight": convolve,
}


@pytest.mark.parametrize("name", CALLS)
def test_types_are_named_as_on_the_cpu(name):
    with pytest.raises(RuntimeError) as wanted:
        CALLS[name]()
    with record(as_device="cpu"), pytest.raises(RuntimeError) as met:
        CALLS[name]()
    assert str(met.value) == str(wanted.value)


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("meta", "a MetaFloatType and a MetaBFloat16Type"),
        ("cpu", "a torch.FloatTensor and a CPUBFloat16Type"),
        ("cuda", "a torch.cuda.FloatTensor and a CUDABFloat16Type"),
    ],
)
def test_types_are_those_of_the_device(device, wanted):
    error = RuntimeError("a MetaFloatType and a MetaBFloat16Type")
    name_types(error, device)
    assert str(error) == wanted


def test_other_words_stay():
    error = KeyError("MetaType", 3)
    name_types(error, "cpu")
    assert error.args == ("MetaType", 3)
