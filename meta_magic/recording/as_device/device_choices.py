"""Make Python functions of torch that depend on the device follow the recorded one.

Each class replaces such functions within a recording: of meta kernels
(``torch.linalg.svd`` lays out its result by device), of optimizers (on CUDA they take
all parameters at once), and of losses in chunks.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from meta_magic.recording.rows.written import OfRecording
from meta_magic.torch_private.replaced import (
    CAPTURABLE_DEVICES,
    DEVICE_OF_CHUNKED_LOSSES,
    DEVICE_OF_META_KERNELS,
    FOREACH_DEVICES,
    FOREACH_DEVICES_OF_OPTIMIZERS,
    FUSED_DEVICES,
    Replaceable,
)

FindDevice: TypeAlias = Callable[[object], str]


class DeviceMetaKernels(OfRecording):
    """Makes meta kernels choose as those of a device, within the block.

    They choose the strides of the results of ``linalg.svd``, ``linalg.eig``,
    ``fft.rfftn`` and others, and the operators of ``interpolate`` if algorithms must be
    deterministic. Without this all choose as on CUDA.

    Source:
        ``device_hint`` in ``torch/_meta_registrations.py`` of torch 2.13: the device of
        a fake tensor, and "cuda" for one on meta. ``interpolate`` in
        ``nn/functional.py``: the CPU's own kernels are deterministic.
    """

    def __enter__(self) -> None:
        if self._plan.kernels != "meta":
            self.wrap(DEVICE_OF_META_KERNELS, self._make_hint)
            asked = {"are_deterministic_algorithms_enabled": self._must_replace}
            self.replace_here(torch, asked)

    def _make_hint(self, before: FindDevice) -> FindDevice:
        """Return the function by which a meta kernel finds the device."""

        def find_device(tensor: object) -> str:
            is_plain = type(tensor) is Tensor or type(tensor) is Parameter
            if is_plain and self._plan.kernels_of(tensor) == "cpu":
                return "cpu"
            return before(tensor)

        return find_device

    def _must_replace(self, plain: Callable[[], bool]) -> bool:
        """Whether ``interpolate`` must run other, deterministic operators."""
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
"""Functions that list the devices with kernels, by the recorded device."""

ListDevices: TypeAlias = Callable[..., list[str]]


class DeviceOptimizers(OfRecording):
    """Makes optimizers choose their implementation as on a device, within the block.

    On CUDA they take all parameters at once (``foreach``), on the CPU and on meta one
    after the other. On meta torch refuses ``fused=True`` and ``capturable=True``, and
    clips gradients one by one.

    Source:
        ``optim/optimizer.py`` and ``utils/_foreach_utils.py`` of torch 2.13.
    """

    def __enter__(self) -> None:
        for function in REPLACED.get(self._plan.kernels, ()):
            self.wrap(function, with_meta)


def with_meta(before: ListDevices) -> ListDevices:
    """Return a function that adds meta to a list of devices."""

    def list_devices(*args: object, **kwargs: object) -> list[str]:
        return [*before(*args, **kwargs), "meta"]

    return list_devices


DEVICES: Final = {name: torch.device(name) for name in ("cpu", "cuda", "meta")}
"""Made at import: a mode that is on would see ``torch.device`` later."""

Adjust: TypeAlias = Callable[..., Any]


class DeviceChunkedLosses(OfRecording):
    """Makes losses of linear layers choose their chunks as on a device, in the block.

    Source:
        ``nn/modules/linear_cross_entropy_options.py`` of torch 2.13.
    """

    def __enter__(self) -> None:
        if self._plan.kernels != "meta":
            for function in DEVICE_OF_CHUNKED_LOSSES:
                self.wrap(function, self._make_adjust)

    def _make_adjust(self, before: Adjust) -> Adjust:
        """Return a function that chooses options for the recorded device."""

        def adjust(*args: Any, device: torch.device | None = None, **given: Any) -> Any:
            if device is not None and device.type == "meta":
                device = DEVICES[self._plan.kernels]
            return before(*args, device=device, **given)

        return adjust
