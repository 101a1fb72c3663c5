"""Meta kernels as a device's: where devices differ, meta answers as CUDA."""

import sys
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.torch_private.replaced import DEVICE_OF_META_KERNELS
from meta_magic.torch_private.replacing import Replacements

__all__ = ["KernelsOf"]

TellDevice: TypeAlias = Callable[[object], str]


class KernelsOf(Replacements):
    """Have meta kernels answer as those of a device, within the block.

    Strides of what ``linalg.svd``, ``linalg.eig``, ``fft.rfftn`` and others return; and
    what ``interpolate`` is made of where algorithms are to be deterministic.

    Args:
        plan: Knows whose kernels run where: of the CPU's, not left to torch.

    Source:
        ``device_hint`` in ``torch/_meta_registrations.py`` of torch 2.13: the device of
        a fake tensor, and "cuda" for one on meta. ``interpolate`` in
        ``nn/functional.py``: the CPU's own kernels are deterministic.
    """

    def __init__(self, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan

    def __enter__(self) -> None:
        if self._plan.kernels != "meta":
            self.wrap(DEVICE_OF_META_KERNELS, self._make_hint)
            asked = {"are_deterministic_algorithms_enabled": self._must_replace}
            self.replace_here(torch, asked)

    def _make_hint(self, before: TellDevice) -> TellDevice:
        """Return what tells a kernel the device as which it is to answer."""

        def tell_device(tensor: object) -> str:
            is_plain = type(tensor) is Tensor or type(tensor) is Parameter
            if is_plain and self._plan.kernels_of(tensor) == "cpu":
                return "cpu"
            return before(tensor)

        return tell_device

    def _must_replace(self, plain: Callable[[], bool]) -> bool:
        """Whether kernels are to be replaced by others that are deterministic."""
        asker = sys._getframe(2)
        if asker.f_code.co_filename == functional.__file__:
            operand = asker.f_locals["input"]
            return plain() and self._plan.kernels_of(operand) != "cpu"
        return plain()
