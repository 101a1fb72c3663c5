"""Meta kernels as a device's: where devices differ, meta answers as CUDA."""

from types import TracebackType

from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.replacing import Replacements
from meta_magic.recording.torch_private import meta_kernels

__all__ = ["KernelsOf"]


class KernelsOf:
    """Have meta kernels answer as those of a device, within the block.

    Strides of what ``linalg.svd``, ``linalg.eig``, ``fft.rfftn`` and others return.

    Args:
        device: ``cpu``; anything else leaves it to torch.

    Source:
        ``device_hint`` in ``torch/_meta_registrations.py`` of torch 2.13: the device of
        a fake tensor, and "cuda" for one on meta.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._before = meta_kernels.device_hint
        self._replacements = Replacements()

    def __enter__(self) -> None:
        self._before = meta_kernels.device_hint
        if self._device == "cpu":
            hint = self.tell_device
            self._replacements.replace(meta_kernels, "device_hint", hint)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._replacements.restore()

    def tell_device(self, tensor: object) -> str:
        """Return the device as which a kernel is to answer."""
        is_plain = type(tensor) is Tensor or type(tensor) is Parameter
        if is_plain and tensor.is_meta:  # type: ignore[attr-defined]
            return self._device
        device: str = self._before(tensor)
        return device
