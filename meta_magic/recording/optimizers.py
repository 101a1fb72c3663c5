"""Optimizers as a device runs them: which of torch's implementations is the default.

An optimizer looks at the device of its parameters: on CUDA it takes all of them at once
(``foreach``), on the CPU and on meta one after the other; ``fused=True`` is refused on
meta, and clipping of gradients goes one by one. Here meta counts as the device.

Source: ``optim/optimizer.py`` and ``utils/_foreach_utils.py`` of torch 2.13.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Final

from meta_magic.recording.replacing import Replacements
from meta_magic.recording.torch_private import foreach_module, optimizer_module

__all__ = ["OptimizersOf"]

FOREACH: Final = "_get_foreach_kernels_supported_devices"
FUSED: Final = "_get_fused_kernels_supported_devices"

REPLACED: Final[dict[str, tuple[tuple[ModuleType, str], ...]]] = {
    # Clipping of gradients asks for the first and adds the CPU to the answer.
    "cpu": ((foreach_module, FOREACH), (optimizer_module, FUSED)),
    "cuda": (
        (foreach_module, FOREACH),
        (optimizer_module, FOREACH),
        (optimizer_module, FUSED),
    ),
}
"""The functions that answer which devices have kernels, by the device wanted."""

Answer = Callable[..., list[str]]


class OptimizersOf(Replacements):
    """Have optimizers on meta be those of a device, within the block.

    Args:
        device: ``cpu`` or ``cuda``; ``meta`` leaves it to torch.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._places = REPLACED.get(device, ())

    def __enter__(self) -> None:
        for module, name in self._places:
            answer = with_meta(getattr(module, name))
            self.replace(module, name, answer)


def with_meta(answer: Answer) -> Answer:
    """Return a function that adds meta to a list of devices."""

    def list_devices(*args: object) -> list[str]:
        return [*answer(*args), "meta"]

    return list_devices
