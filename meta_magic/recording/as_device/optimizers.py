"""Optimizers as a device runs them: which of torch's implementations is the default.

An optimizer looks at the device of its parameters: on CUDA it takes all of them at once
(``foreach``), on the CPU and on meta one after the other; ``fused=True`` is refused on
meta as ``capturable=True`` is, and clipping of gradients goes one by one. Here meta
counts as the device.

Source: ``optim/optimizer.py`` and ``utils/_foreach_utils.py`` of torch 2.13.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from meta_magic.torch_private.replaced import (
    CAPTURABLE_DEVICES,
    FOREACH_DEVICES,
    FOREACH_DEVICES_OF_OPTIMIZERS,
    FUSED_DEVICES,
    Replaceable,
)
from meta_magic.torch_private.replacing import Replacements

__all__ = ["OptimizersOf"]

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


class OptimizersOf(Replacements):
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
