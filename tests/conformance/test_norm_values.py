"""What is computed after norms, whose kernels differ from device to device."""

import pytest
import torch

from meta_magic import record, verify


def test_training_with_norms_as_on_the_cpu_is_what_the_cpu_does():
    with record(as_device="cpu") as trace:
        model = torch.nn.Sequential(
            *(torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
        ).bfloat16()
        model[2].eval()
        model(torch.randn(3, 2, 4).bfloat16()).sum().backward()
    assert verify(trace, "cpu").empty


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_a_value_after_a_norm_of_another_device_is_known(device):
    """The statistics are other tensors there, and nothing reads them."""

    def compute():
        torch.manual_seed(0)
        norms = torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(2).eval()
        return torch.nn.Sequential(*norms).bfloat16()(torch.randn(3, 2, 4).bfloat16())

    with record(as_device=device):
        met = compute().sum().item()
    assert met == compute().sum().item()
