"""On which device results lie: as FakeTensorMode says, which needs no GPU for it."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meta_magic import record

DEVICES = ("cuda:0", "cuda:1", "cpu")
CASES = {
    "add": lambda a, b: torch.rand(3, device=a) + torch.rand(3, device=b),
    "mm": lambda a, b: torch.rand(3, 3, device=a) @ torch.rand(3, 3, device=b),
    "a number": lambda a, b: torch.rand(3, device=a) * torch.rand((), device=b),
    "a number first": lambda a, b: torch.rand((), device=a) * torch.rand(3, device=b),
    "two numbers": lambda a, b: torch.rand((), device=a) * torch.rand((), device=b),
    "cat": lambda a, b: torch.cat([torch.rand(3, device=a), torch.rand(3, device=b)]),
    "where": lambda a, b: torch.where(
        torch.rand(3, device=a) > 0, torch.rand(3, device=b), 0.0
    ),
    "embedding": lambda a, b: torch.nn.functional.embedding(
        torch.zeros(2, dtype=torch.long, device=a), torch.rand(3, 4, device=b)
    ),
    "linear": lambda a, b: torch.nn.functional.linear(
        torch.rand(2, 3, device=a), torch.rand(4, 3, device=b)
    ),
    "to other": lambda a, b: torch.rand(3, device=a).to(torch.rand(3, device=b)),
    "new_zeros": lambda a, b: torch.rand(3, device=a).new_zeros(2, device=b),
    "zeros_like": lambda a, b: torch.zeros_like(torch.rand(3, device=a), device=b),
    "dropout": lambda a, b: torch.nn.functional.dropout(torch.rand(3, device=a)).to(b),
}


def device_of(make, first, second):
    """Return the device of what a function makes, or that it refuses."""
    try:
        return make(first, second).device
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("name", CASES)
def test_results_lie_where_torch_puts_them(name):
    pairs = [*itertools.product(DEVICES, DEVICES)]
    with FakeTensorMode():
        wanted = {pair: device_of(CASES[name], *pair) for pair in pairs}
    with record():
        found = {pair: device_of(CASES[name], *pair) for pair in pairs}
    assert found == wanted


def test_a_tensor_without_a_place_joins_any():
    with record():
        made = torch.rand(3, device="cuda") + torch.rand(3)
        assert made.device == torch.device("cuda", 0)


@pytest.mark.parametrize("devices", [*itertools.product(DEVICES, DEVICES)])
def test_a_copy_lies_where_it_is_written(devices):
    with record():
        written = torch.rand(3, device=devices[0])
        assert written.copy_(torch.rand(3, device=devices[1])) is written
        assert written.device == torch.device(devices[0])


@pytest.mark.parametrize("devices", [*itertools.product(DEVICES, DEVICES)])
def test_an_index_lies_on_the_cpu_or_with_what_it_is_for(devices):
    def take(a, b):
        return torch.rand(3, device=a)[torch.zeros(2, dtype=torch.long, device=b)]

    first, second = devices
    with record():
        found = device_of(take, first, second)
    is_fine = second in ("cpu", first)
    assert found == (torch.device(first) if is_fine else "refused")


@pytest.mark.parametrize("cache", [True, False])
def test_a_cache_hit_puts_its_result_where_its_arguments_are(cache):
    with record(cache=cache):
        made = [
            (torch.rand(3, device=device) * 2 + 1).device
            for device in ("cuda:1", "cpu", "cuda:1", "cpu")
        ]
    assert made == [torch.device(d) for d in ("cuda:1", "cpu", "cuda:1", "cpu")]
