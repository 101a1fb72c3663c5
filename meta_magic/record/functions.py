"""The function mode: makes factories build on meta, and says which call is running."""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType, MethodWrapperType
from typing import Any, Final

import numpy as np
import torch

from meta_magic.record.places import TORCH, Places
from meta_magic.record.torch_private import (
    DeviceContext,
    device_constructors,
    pop_function_mode,
    push_function_mode,
)

from meta_magic.trace.records import Note

__all__ = ["FunctionRecorder"]

VALUE_READERS: Final = frozenset(
    {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__"}
    | {"equal", "allclose", "nonzero", "is_nonzero", "one_hot", "unique", "__array__"}
    | {"__getitem__", "masked_select", "bincount", "to", "repeat_interleave"}
)

REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

FROM_NUMPY: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class FunctionRecorder(DeviceContext):  # type: ignore[misc]
    """Stands where ``with torch.device("meta")`` would, and knows the running call.

    A ``DeviceContext`` so that ``torch.get_default_device()`` says meta, and so that
    each call pays for one mode instead of two.

    Attributes:
        notes: Where float64 leaked in from numpy.
    """

    def __init__(self, places: Places) -> None:
        super().__init__("meta")
        self.notes: dict[Note, None] = {}
        self._places = places
        self._constructors = device_constructors()

    def __enter__(self) -> None:
        # On top of the stack, as ``with torch.device`` does it, not at its bottom.
        push_function_mode(self)

    def __exit__(self, *_: object) -> None:
        pop_function_mode()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, on meta if it is a factory that was told no device."""
        if type(func) is MethodWrapperType and not kwargs:
            return func(*args)  # an attribute such as ``shape``: runs no operator
        frame = sys._getframe(1)
        if func in self._constructors and (not kwargs or kwargs.get("device") is None):
            if frame.f_code.co_filename not in REAL_FACTORY_FILES:
                kwargs = {**(kwargs or {}), "device": self.device}
            if func in FROM_NUMPY:
                self._check_float64(func, frame, args, kwargs or {})
        places = self._places
        places.function = func
        places.frame = frame
        places.place = 0
        try:
            return func(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            explain_missing_value(error, func, args)
            raise
        finally:
            places.function = places.frame = None
            places.place = 0

    def _check_float64(
        self,
        func: Any,
        frame: FrameType,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        is_leak = (
            args
            and isinstance(args[0], (np.ndarray, np.float64))
            and args[0].dtype == np.float64
            and kwargs.get("dtype") is None
            and torch.get_default_dtype() != torch.float64
        )
        if is_leak:
            _, line, _ = self._places.walk(frame, None, (0, 0))
            text = f"torch.{func.__name__} took float64 from numpy; dtype= would say otherwise"
            self.notes.setdefault(Note(kind="float64", text=text, line=line or None))


def explain_missing_value(error: Exception, func: Any, args: Sequence[Any]) -> None:
    """Add to an error that a value was asked of a tensor that has none, and what helps."""
    name = getattr(func, "__name__", "")
    is_meta = any(isinstance(a, torch.Tensor) and a.is_meta for a in args)
    if name in VALUE_READERS and is_meta and not hasattr(error, "__notes__"):
        error.add_note(
            f"meta_magic: {name}() needs the value of a tensor, and a meta tensor has "
            "none. Compute it under `with torch.device('cpu'):`, or keep shapes and "
            "branches independent of data."
        )
