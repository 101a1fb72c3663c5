"""The device that a cell makes the default one: where it wants what it makes there."""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from meta_magic.recording.identities.device_plan import (
    META,
    DevicePlan,
    is_default_on_meta,
)
from meta_magic.recording.intercept.libraries import MAKE_REAL
from meta_magic.recording.intercept.moves import read_type
from meta_magic.torch_private.replacing import Methods, Replacements

__all__ = ["DefaultDevices"]

CPU: Final = torch.device("cpu")


class DefaultDevices(Replacements):
    """Have a default device that the cell sets be a plan, within the block.

    Args:
        plan: Knows where the code wants what.
        note: Takes the kind and the text of a note on the line that runs now.
    """

    def __init__(self, plan: DevicePlan, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self._plan = plan
        self._note = note

    def __enter__(self) -> None:
        if not self._plan.is_real:
            methods: Methods = {
                "set_default_device": self._set,
                "get_default_device": self._get,
                "set_default_tensor_type": self._set_type,
            }
            self.replace_here(torch, methods)

    def _set(self, _: Any, device: Any) -> None:
        place = META if device is None else self._plan.read(device)
        self._plan.default = None if place == META else place
        if device is not None:
            text = f"torch.set_default_device({device}) was undone after the cell"
            self._note("state", text)

    def _get(self, plain: Callable[[], torch.device]) -> torch.device:
        default = self._plan.default
        if sys._getframe(2).f_code.co_name in MAKE_REAL:
            return default or CPU  # where the tensor is that it compares with this
        return plain() if default is None or not is_default_on_meta() else default

    def _set_type(self, _: Any, kind: Any) -> None:
        device, dtype = read_type(kind)
        torch.set_default_dtype(dtype)
        self._set(None, None if device == "cpu" else device)
