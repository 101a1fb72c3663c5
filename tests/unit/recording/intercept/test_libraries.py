"""What functions of other libraries are told: known by the name of their code."""

import pytest
import torch

from meta_magic import record


def grouped_mm_experts_forward(tensor):
    """Stands for the function of transformers."""
    return tensor.device.type, torch.ones(2, device="cuda")


def get_torch_context_manager_or_global_device():
    """Stands for the function of transformers."""
    return torch.tensor([]).device.type


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_function_that_chooses_by_device_is_told_whose_kernels_are_recorded(device):
    with record(as_device=device):
        told, made = grouped_mm_experts_forward(torch.ones(2))
    assert told == device
    assert made.is_meta


def test_another_function_is_told_that_a_tensor_is_on_meta():
    with record(as_device="cuda"):
        told = torch.ones(2).device.type
    assert told == "meta"


def test_a_function_that_looks_where_a_factory_makes_its_tensor_is_told_the_cpu():
    with record():
        told = get_torch_context_manager_or_global_device()
        elsewhere = torch.tensor([]).device.type
    assert (told, elsewhere) == ("cpu", "meta")


def test_a_library_that_asks_under_meta_by_name_is_told_meta(monkeypatch):
    asking = get_torch_context_manager_or_global_device.__code__
    there = asking.replace(co_filename="/site-packages/library.py")
    monkeypatch.setattr(get_torch_context_manager_or_global_device, "__code__", there)
    with record(), torch.device("meta"):
        told = get_torch_context_manager_or_global_device()
    assert told == "meta"


def test_a_storage_that_a_library_read_becomes_a_tensor_of_known_values():
    storage = torch.arange(3.0).untyped_storage()
    with record():
        tensor = torch.asarray(storage, dtype=torch.float32)
        values = tensor.tolist()
    assert tensor.is_meta
    assert values == [0.0, 1.0, 2.0]
