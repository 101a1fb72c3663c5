"""Meta kernels as a device's: where devices differ, meta answers as CUDA."""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.torch_private.replaced import (
    CAPTURABLE_DEVICES,
    DEVICE_OF_CHUNKED_LOSSES,
    DEVICE_OF_META_KERNELS,
    FOREACH_DEVICES,
    FOREACH_DEVICES_OF_OPTIMIZERS,
    FUSED_DEVICES,
    Replaceable,
)
from meta_magic.torch_private.replacing import Replacements

FindDevice: TypeAlias = Callable[[object], str]


class DeviceMetaKernels(Replacements):
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

    def _make_hint(self, before: FindDevice) -> FindDevice:
        """Return what tells a kernel the device as which it is to answer."""

        def find_device(tensor: object) -> str:
            is_plain = type(tensor) is Tensor or type(tensor) is Parameter
            if is_plain and self._plan.kernels_of(tensor) == "cpu":
                return "cpu"
            return before(tensor)

        return find_device

    def _must_replace(self, plain: Callable[[], bool]) -> bool:
        """Whether kernels are to be replaced by others that are deterministic."""
        asker = sys._getframe(2)
        if asker.f_code.co_filename == functional.__file__:
            operand = asker.f_locals["input"]
            return plain() and self._plan.kernels_of(operand) != "cpu"
        return plain()


REPLACED: Final[dict[str, tuple[Replaceable, ...]]] = {
    # Clipping of gradients asks for the first and adds the CPU to the answer.
    "cpu": (FOREACH_DEVICES, FUSED_DEVICES),
    "cuda": (
        FOREACH_DEVICES,
        FOREACH_DEVICES_OF_OPTIMIZERS,
        FUSED_DEVICES,
        *CAPTURABLE_DEVICES,
    ),
}
"""The functions that say which devices have kernels, by the device wanted."""

ListDevices: TypeAlias = Callable[..., list[str]]


class DeviceOptimizers(Replacements):
    """Have optimizers on meta be those of a device, within the block.

    Args:
        device: ``cpu`` or ``cuda``; ``meta`` leaves it to torch.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._functions = REPLACED.get(device, ())

    def __enter__(self) -> None:
        for function in self._functions:
            self.wrap(function, with_meta)


def with_meta(before: ListDevices) -> ListDevices:
    """Return a function that adds meta to a list of devices."""

    def list_devices(*args: object, **kwargs: object) -> list[str]:
        return [*before(*args, **kwargs), "meta"]

    return list_devices


DEVICES: Final = {name: torch.device(name) for name in ("cpu", "cuda", "meta")}
"""Made here: a mode that is on already would see it while a recording begins."""

Adjust: TypeAlias = Callable[..., Any]


class DeviceChunkedLosses(Replacements):
    """Have options of losses on meta be chosen as for a device, within the block.

    Args:
        device: ``cpu`` or ``cuda``; ``meta`` leaves it to torch.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = DEVICES[device]

    def __enter__(self) -> None:
        for place in DEVICE_OF_CHUNKED_LOSSES if self._device.type != "meta" else ():
            self.wrap(place, self._make_adjust)

    def _make_adjust(self, before: Adjust) -> Adjust:
        """Return how options are chosen, where meta is the device."""

        def adjust(*args: Any, device: torch.device | None = None, **given: Any) -> Any:
            is_on_meta = device is not None and device.type == "meta"
            return before(*args, device=self._device if is_on_meta else device, **given)

        return adjust
