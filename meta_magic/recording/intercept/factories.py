"""Have factories build on meta, whatever device they are told."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch

from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.identities.frame_kinds import TORCH
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.copies import (
    REBUILDING,
    UNPICKLED,
    copy_flatly,
    rebuild_without_content,
)
from meta_magic.recording.intercept.libraries import ADOPTED, MAKE_REAL, TOLD_DEVICE
from meta_magic.recording.rows.constants import VALUE_FUNCTIONS, Constants
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.modes import (
    DeviceContext,
    DisableTorchDispatch,
    device_constructors,
)

__all__ = ["Factories", "is_way_out"]

REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

HERE: Final = f"{Path(__file__).parents[2]}/"
"""Where the code lies that runs an operator as it was called."""

OPS: Final = str(TORCH / "_ops.py")
"""Stands between an operator and who calls it."""

MEANT_FILES: Final = tuple(
    str(TORCH / name) for name in ("_utils.py", "storage.py", "serialization.py")
)
"""Files of torch that mean the device that they name."""

BY_NAME: Final = "what was put on 'meta' by name counts as on the device of the cell"
FROM_NUMPY: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray})

WRITTEN: Final = sys.intern("meta")
"""The string as a literal of source code is; ``str(x.device)`` is another object, and
means the device of the cell."""

CONTEXT: Final = DeviceContext.__torch_function__.__code__
"""Runs where ``with torch.device(...)`` is on, and calls on."""


def is_meta_by_name(device: object, caller: FrameType) -> bool:
    """Whether a factory was told meta, by its argument or by ``with torch.device``."""
    if device is WRITTEN:
        return True
    is_context = caller.f_code is CONTEXT
    return is_context and caller.f_locals["self"].device == META


def is_way_out(caller: FrameType) -> bool:
    """Whether a call comes from within ``with torch.device("cpu")``, which is meant."""
    if caller.f_code is not CONTEXT:
        return False
    return bool(caller.f_locals["self"].device.type == "cpu")


class Factories:
    """Runs the functions that make tensors.

    Args:
        registry: Numbers of tensors.
        constants: Keeps values that come from Python.
        findings: Takes what is rarely meant, such as float64 that leaked in from numpy,
            and what was put on meta by name.
        plan: Knows where the code wants what.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        constants: Constants,
        findings: Findings,
        plan: DevicePlan,
    ) -> None:
        self._registry = registry
        self._constants = constants
        self._findings = findings
        self._plan = plan
        self._constructors = device_constructors()

    def make(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Call a function that makes tensors, and keep the values that they are of."""
        if caller.f_code is REBUILDING:
            return self._rebuild(func, args, kwargs, caller)
        if caller.f_code.co_name in MAKE_REAL:
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        adopt = ADOPTED.get(func)
        adopted = None if adopt is None else adopt(args, kwargs)
        if adopted is not None:
            return adopted.to(META)
        while caller.f_code.co_filename == OPS and caller.f_back is not None:
            caller = caller.f_back
        made = self._make(func, args, kwargs, caller)
        if func in VALUE_FUNCTIONS:
            self._constants.note_values(made, func, args, kwargs)
        return made

    def _make(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Call a factory where the code wants it."""
        device = kwargs.get("device")
        if func in FROM_NUMPY and device is None:
            self._check_float64(func, args, kwargs)
        if func in self._constructors and is_meta_by_name(device, caller):
            self._findings.doubt(BY_NAME)
            return self._registry.put_aside(lambda: func(*args, **kwargs))
        if self._is_meant(func, args, kwargs, caller):
            return func(*args, **kwargs)
        wanted = None if device is None else self._plan.read(device)
        on_meta = {**kwargs, "device": META}
        if wanted is None or wanted == META or caller.f_code.co_name in TOLD_DEVICE:
            wanted = self._plan.default
        if wanted is None:
            return func(*args, **on_meta)
        return self._make_at(wanted, func, args, on_meta)

    def _make_at(
        self, wanted: torch.device, func: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """Call a factory that is to put its result on a device."""
        plan, before = self._plan, self._plan.wanted
        plan.wanted = wanted
        try:
            made = func(*args, **kwargs)
        finally:
            plan.wanted = before
        plan.name_all(tensors_in(made), wanted)  # some were made without any operator
        return made

    def _is_meant(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> bool:
        """Whether a factory makes what it was told to, for real if that is real."""
        device = kwargs.get("device")
        file = caller.f_code.co_filename
        is_ours = file.startswith(HERE)
        if "out" in kwargs or is_ours or file in REAL_FACTORY_FILES:
            return True
        if device is None:
            # Of tensors it needs no device, and takes none.
            has_tensors = func is torch.normal and bool(tensors_in(args, kwargs))
            return has_tensors or func not in self._constructors
        if self._plan.is_real and torch.device(device).type != "meta":
            return True
        is_written = "cpu" in caller.f_code.co_consts  # there, and not handed on
        is_literal = is_written and device == "cpu" and type(device) is str
        if file.startswith(f"{TORCH}/") and (is_literal or file in MEANT_FILES):
            return True
        return is_way_out(caller) and torch.device(device).type == "cpu"

    def _rebuild(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Make the tensor that Python copies, or say that it has no content."""
        copied = copy_flatly(caller, self._registry)
        if copied is not None:
            return copied
        self._findings.note("load", UNPICKLED)
        self._findings.doubt(UNPICKLED)
        with DisableTorchDispatch():
            like = func(*args, **kwargs)
        return rebuild_without_content(like)

    def _check_float64(self, func: Any, args: Args, kwargs: Mapping[str, Any]) -> None:
        is_leak = (
            args
            and isinstance(args[0], (np.ndarray, np.float64))
            and args[0].dtype == np.float64
            and kwargs.get("dtype") is None
            and torch.get_default_dtype() != torch.float64
        )
        if is_leak:
            text = f"torch.{func.__name__} took float64 over from numpy (see dtype=)"
            self._findings.note("float64", text)
