"""Meta kernels as a device's: where devices differ, meta answers as CUDA."""

from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.replacing import Replacements
from meta_magic.recording.torch_private import meta_kernels

__all__ = ["KernelsOf"]


class KernelsOf(Replacements):
    """Have meta kernels answer as those of a device, within the block.

    Strides of what ``linalg.svd``, ``linalg.eig``, ``fft.rfftn`` and others return.

    Args:
        device: ``cpu``; anything else leaves it to torch.

    Source:
        ``device_hint`` in ``torch/_meta_registrations.py`` of torch 2.13: the device of
        a fake tensor, and "cuda" for one on meta.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._before = meta_kernels.device_hint

    def __enter__(self) -> None:
        self._before = meta_kernels.device_hint
        if self._device == "cpu":
            self.replace(meta_kernels, "device_hint", self.tell_device)

    def tell_device(self, tensor: object) -> str:
        """Return the device as which a kernel is to answer."""
        is_plain = type(tensor) is Tensor or type(tensor) is Parameter
        if is_plain and tensor.is_meta:  # type: ignore[attr-defined]
            return self._device
        device: str = self._before(tensor)
        return device
