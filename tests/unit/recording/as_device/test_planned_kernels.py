"""Kernels are those of the place of a tensor where the code named one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record

OTHER = {"cpu": "cuda", "cuda": "cpu"}


@pytest.mark.parametrize("place", OTHER)
def test_attention_is_that_of_a_place(place):
    with record(as_device=OTHER[place]) as trace:
        x = torch.ones(1, 2, 8, 16, device=place)
        F.scaled_dot_product_attention(x, x, x)
    (call,) = [call for call in trace.ops if "attention" in call.op]
    assert ("for_cpu" in call.op) == (place == "cpu")


@pytest.mark.parametrize("place", OTHER)
def test_an_optimizer_takes_the_implementation_of_a_place(place):
    with record(as_device=OTHER[place]) as trace:
        model = nn.Linear(3, 2, device=place)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 3, device=place)).sum().backward()
        optimizer.step()
    is_foreach = any("_foreach_" in call.op for call in trace.ops)
    assert is_foreach == (place == "cuda")


def list_dtypes(place):
    """Return what a linear layer gives under autocast of each device."""
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    if place:
        model, x = model.to(place), x.to(place)
    dtypes = []
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float16)):
        with torch.autocast(device, dtype=dtype):
            dtypes.append(model(x).dtype)
    return dtypes


@pytest.mark.parametrize("device", OTHER)
def test_autocast_casts_what_lies_on_its_device(device):
    with record(as_device=device):
        assert list_dtypes("cpu") == [torch.bfloat16, torch.float32]
        assert list_dtypes("cuda") == [torch.float32, torch.float16]


def test_groups_of_channels_that_come_last_are_those_of_a_place():
    def normalize(device):
        x = torch.ones(2, 4, 3, 3, device=device)
        return F.group_norm(x.contiguous(memory_format=torch.channels_last), 2).stride()

    # On CUDA as on meta, where they came first in torch 2.13, and come last in 2.15.
    on_cpu, on_meta = normalize("cpu"), normalize("meta")
    with record(as_device="cuda"):
        assert normalize("cpu") == on_cpu
        assert normalize("cuda") == on_meta
