"""Losses of linear layers in chunks, whose size and dtype are chosen by the device.

Source: ``nn/modules/linear_cross_entropy_options.py`` of torch 2.13.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from meta_magic.torch_private.replaced import DEVICE_OF_CHUNKED_LOSSES
from meta_magic.torch_private.replacing import Replacements

__all__ = ["ChunkedLossesOf"]

DEVICES: Final = {name: torch.device(name) for name in ("cpu", "cuda", "meta")}
"""Made here: a mode that is on already would see it while a recording begins."""

Adjust: TypeAlias = Callable[..., Any]


class ChunkedLossesOf(Replacements):
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
