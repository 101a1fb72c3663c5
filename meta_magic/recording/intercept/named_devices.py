"""Decide how to read the device that the code gives to a factory."""

import sys
from types import FrameType
from typing import Final

import torch

from meta_magic.recording.identities.call_sites import PACKAGE, TORCH, TORCH_FILES
from meta_magic.recording.identities.device_plan import META, DevicePlan, is_home
from meta_magic.torch_private.modes import DeviceContext

REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

MEANT_FILES: Final = tuple(
    str(TORCH / name) for name in ("_utils.py", "storage.py", "serialization.py")
)
"""Files of torch whose factories must make real tensors."""

CPU: Final = torch.device("cpu")

WRITTEN: Final = sys.intern("meta")
"""The string object of literals in source code. ``str(x.device)`` is another object; it
means the device of the cell."""

CONTEXT: Final = DeviceContext.__torch_function__.__code__
"""The code of torch's mode that passes calls on under ``with torch.device(...)``."""


def is_meta_by_name(device: object, caller: FrameType) -> bool:
    """Whether a factory was given meta, by its argument or by ``with torch.device``."""
    if device is WRITTEN:
        return True
    return caller.f_code is CONTEXT and read_context(caller) == META


def is_in_cpu_context(caller: FrameType) -> bool:
    """Whether a call is within ``with torch.device("cpu")``: its tensors are real."""
    return caller.f_code is CONTEXT and read_context(caller) == CPU


def read_context(caller: FrameType) -> torch.device | None:
    """Return the device of ``with torch.device(...)``, by the frame of ``CONTEXT``.

    None for ``with torch.device(x.device)`` where the code put ``x`` on no device: that
    names none.
    """
    device: torch.device = caller.f_locals["self"].device
    return None if is_home(device) else device


def must_be_real(
    plan: DevicePlan, device: torch.device, given: object, caller: FrameType
) -> bool:
    """Whether a factory must really use a device, and not only plan it.

    Args:
        given: The argument that names it.
        caller: The frame that names it.
    """
    file = caller.f_code.co_filename
    if file.startswith(PACKAGE) or file in REAL_FACTORY_FILES:
        return True
    if plan.is_real and device != META:
        return True
    is_literal = type(given) is str and given == "cpu"
    is_literal &= "cpu" in caller.f_code.co_consts  # a literal there, not passed on
    if file.startswith(TORCH_FILES) and (is_literal or file in MEANT_FILES):
        return True
    return is_in_cpu_context(caller) and device.type == "cpu"
