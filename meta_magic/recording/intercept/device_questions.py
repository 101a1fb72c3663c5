"""What a tensor answers that is asked for its device."""

import inspect
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules import activation, transformer

from meta_magic.recording.identities.call_sites import OPTIM, PACKAGE, is_library
from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.intercept.libraries import TOLD_DEVICE
from meta_magic.torch_private.tensor_internals import (
    CHECKPOINTING,
    PICKLING,
    MetaConverter,
)

__all__ = [
    "DEVICE_QUESTIONS",
    "GET_DEVICE",
    "DeviceQuestions",
    "as_fake",
    "is_told_home",
]

DEVICE: Final[Any] = Tensor.device
GET_DEVICE: Final = frozenset[Any]({Tensor.get_device, torch.get_device})
IS_TYPE: Final[dict[Any, str]] = {
    getattr(Tensor, f"is_{name}"): name for name in ("cuda", "cpu", "xpu", "mps")
}
DEVICE_QUESTIONS: Final = frozenset[Any]({DEVICE, *IS_TYPE})
"""The attributes that say on which device a tensor is; ``is_meta`` tells the truth."""

ASKING: Final = frozenset({activation.__file__, transformer.__file__})
"""Those of torch's own files that choose kernels by the device of a tensor."""

DESCRIBING: Final = inspect.getfile(MetaConverter)
"""The file that asks where a tensor is that a fake one is to stand for."""

CHOOSING: Final = (OPTIM, functional.__file__)
"""How the names of those begin that do so by its ``is_cpu`` and the like."""


class DeviceQuestions:
    """Answers with the device that the code named.

    Where it named none, the cell's own code is told meta, as ever; a library the device
    on which the tensor would be, else it leaves out work, or refuses it.

    Args:
        plan: Knows what lies where.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan = plan

    def answer(self, attribute: Any, tensor: Tensor, asker: FrameType) -> Any:
        """Return the value of an attribute of ``DEVICE_QUESTIONS``."""
        device = self._find(tensor, asker)
        if attribute is DEVICE:
            return device
        if device == META and asker.f_code.co_filename.startswith(CHOOSING):
            device = self._plan.home
        return device.type == IS_TYPE[attribute]

    def number(self, tensor: Tensor, asker: FrameType) -> int:
        """Return what ``get_device()`` does: the device's index, -1 for the CPU."""
        device = self._find(tensor, asker)
        return -1 if device.type in ("cpu", "meta") else device.index

    def _find(self, tensor: Tensor, asker: FrameType) -> torch.device:
        code = asker.f_code
        is_as_it_is = code is PICKLING or code is CHECKPOINTING  # to hash code is slow
        if is_as_it_is or code.co_filename.startswith(PACKAGE):
            return tensor.device  # as it is: what pickles would look for data
        place = self._plan.place_of(tensor)
        if code.co_filename == DESCRIBING:
            return as_fake(place or self._plan.home)
        if place is not None:
            return place
        return self._plan.home if is_told_home(asker) else META


def as_fake(device: torch.device) -> torch.device:
    """Return where a fake tensor is that stands for one on a device.

    Of an accelerator that torch does not have it would end the process.
    """
    return device if device.type == "cpu" else META


def is_told_home(asker: FrameType) -> bool:
    """Whether code is told where a tensor would lie for which no device is named."""
    name, file = asker.f_code.co_name, asker.f_code.co_filename
    return name in TOLD_DEVICE or file in ASKING or is_library(file)
