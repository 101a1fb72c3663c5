"""The function mode: makes factories build on meta, and says which call is running."""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType, MethodWrapperType
from typing import Any, Final

import numpy as np
import torch

from meta_magic.errors import MissingValueError
from meta_magic.recording.constants import VALUE_FUNCTIONS
from meta_magic.recording.dispatch import Recorder
from meta_magic.recording.function_cache import build_key, is_alone, is_pure
from meta_magic.recording.initializers import IS_META, is_loading, read_initializer
from meta_magic.recording.places import TORCH, Places
from meta_magic.recording.signatures import SignatureCache
from meta_magic.recording.templates import learn
from meta_magic.recording.tensors import TensorRegistry
from meta_magic.recording.torch_private import (
    DeviceContext,
    DisableTorchDispatch,
    DisableTorchFunction,
    device_constructors,
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.trace.records import Note

__all__ = ["FunctionRecorder"]

META: Final = torch.device("meta")
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

DEVICE_TEST: Final = "get_torch_context_manager_or_global_device"
"""The function of transformers that makes a tensor to see on which device it lies, and
leaves out all initialization if that is meta: it is told the CPU."""

DATA_READERS: Final = frozenset[Any](
    (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__format__)
)

INDEXING: Final = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
SEQUENCES: Final = frozenset({list, tuple})
BY_NAME: Final = "what was put on 'meta' by name counts as on the device of the cell"
FROM_NUMPY: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class FunctionRecorder(DeviceContext):  # type: ignore[misc]
    """Stands where ``with torch.device("meta")`` would, and knows the running call.

    A ``DeviceContext`` so that ``torch.get_default_device()`` says meta, and so that
    each call pays for one mode instead of two.

    Attributes:
        notes: Where float64 leaked in from numpy.
        doubts: What was put on meta by name, with its line.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        places: Places,
        dispatch: Recorder,
        cache: SignatureCache,
    ) -> None:
        # Not the base's: its torch.device(...) would be a call to a mode outside.
        self.device = META
        self.prev_mode = None
        self.notes: dict[Note, None] = {}
        self.doubts: dict[tuple[str, int | None], None] = {}
        self._places = places
        self._registry = registry
        self._dispatch = dispatch
        self._rows = dispatch.rows
        self._template_by_key = cache.template_by_key
        self._can_serve = cache.is_serving
        self._is_pure_by_function = cache.is_pure_by_function
        self._is_serving = False
        self._constructors = device_constructors()

    def __enter__(self) -> None:
        # A function mode that is there already must see every call.
        stack = function_mode_stack()
        self._is_serving = self._can_serve and all(
            type(mode) is DeviceContext for mode in stack
        )
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
            if func.__self__ is IS_META:
                return self._answer_is_meta(func, args)
            return func(*args)  # an attribute such as ``shape``: runs no operator
        places = self._places
        places.function = func
        places.frame = sys._getframe(1)
        places.place = 0
        try:
            if func in INDEXING and type(args[1]) in SEQUENCES:
                args = self._keep_index(args)
            if func in DATA_READERS and args[0].is_meta:
                # Torch refuses a meta tensor before any operator is called.
                return read_data(func, args, kwargs or {})
            if self._is_serving and self._is_pure(func) and is_alone():
                return self._serve(func, args, kwargs)
            if func in self._constructors or func in VALUE_FUNCTIONS:
                return self._construct(func, args, kwargs or {}, places.frame)
            return func(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            explain_missing_value(error, func, args)
            raise
        finally:
            places.function = places.frame = None
            places.place = 0

    def _construct(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        caller: FrameType,
    ) -> Any:
        """Call a factory; keep the values of one that makes a tensor from some."""
        if caller.f_code.co_name == DEVICE_TEST:
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        if func in self._constructors:
            kwargs = self._choose_device(func, args, kwargs, caller)
        made = func(*args, **kwargs)
        if func in VALUE_FUNCTIONS:
            self._dispatch.constants.note_values(made, func, args, kwargs)
        return made

    def _keep_index(self, args: Sequence[Any]) -> Sequence[Any]:
        """Make tensors of the lists in an index, as torch does, and keep their values.

        Torch makes them without any operator.
        """
        tensor, index, *rest = args
        if not tensor.is_meta:
            return args
        if type(index) is tuple:
            return (tensor, tuple(map(self._keep_positions, index)), *rest)
        return (tensor, self._keep_positions(index), *rest)

    def _keep_positions(self, item: Any) -> Any:
        """Return a list of integers as a tensor, and anything else as it is."""
        if type(item) is not list or not item or {*map(type, item)} != {int}:
            return item
        made = torch.tensor(item, device=self.device)
        self._dispatch.constants.note_values(made, torch.tensor, (item,), {})
        return made

    def _answer_is_meta(self, func: Any, args: Sequence[Any]) -> bool:
        """Tell whether a tensor is on meta; record who would do nothing then."""
        frame = sys._getframe(2)
        is_meta: bool = func(*args)
        initializer = read_initializer(frame) if is_meta else None
        if initializer is not None:
            self._places.function = initializer.function
            self._places.frame = frame
            arguments = initializer.read_arguments(frame)
            try:
                with DisableTorchDispatch():
                    self._dispatch.__torch_dispatch__(initializer, (), *arguments)
            finally:
                self._places.function = self._places.frame = None
                self._places.place = 0
        elif is_meta and is_loading(frame):
            text = (
                "load_state_dict changed nothing: tensors on meta have no data to copy "
                "into (see assign=True, or load with meta_magic.materialize)"
            )
            line = self._places.current_line()
            self.notes.setdefault(Note(kind="load", text=text, line=line))
            return False  # torch warns of it, too, once for each tensor
        return is_meta

    def _is_pure(self, func: Any) -> bool:
        known = self._is_pure_by_function.get(func)
        if known is None:
            known = self._is_pure_by_function[func] = is_pure(func)
        return known

    def _serve(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> Any:
        """Answer a call that was seen before; else run it, and watch what it does."""
        rows, templates = self._rows, self._template_by_key
        self._registry.note_deaths()
        key, inputs = build_key(self._registry, func, args, kwargs)
        if key is None:
            return func(*args, **(kwargs or {}))
        template = templates.get(key)
        if template is not None:
            if template.is_native:
                with DisableTorchDispatch():
                    views = func(*args, **(kwargs or {}))
                rows.append_views(template, inputs, views)
                return views
            return rows.append_function(template, inputs)
        captured = rows.watch(inputs, lambda: func(*args, **(kwargs or {})))
        with DisableTorchFunction():
            template = learn(self._registry, captured)
        if template is None:  # a view, say: not worth a key the next time
            self._is_pure_by_function[func] = False
        else:
            templates[key] = template
        return captured.returned

    def _choose_device(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        caller: FrameType,
    ) -> Mapping[str, Any]:
        """Return the keyword arguments of a factory, on meta unless it was told."""
        if func in FROM_NUMPY:
            self._check_float64(func, args, kwargs)
        device = kwargs.get("device")
        if type(device) is str and device.startswith("meta"):
            self.doubts[BY_NAME, self._places.current_line()] = None
        if device is not None or caller.f_code.co_filename in REAL_FACTORY_FILES:
            return kwargs
        return {**kwargs, "device": self.device}

    def _check_float64(
        self,
        func: Any,
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
            line = self._places.current_line()
            text = f"torch.{func.__name__} took float64 over from numpy (see dtype=)"
            self.notes.setdefault(Note(kind="float64", text=text, line=line))


def read_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a method that reads the data of a tensor on its real values."""
    tensor, *rest = args
    if func is torch.Tensor.__format__ and tensor.ndim:
        return func(*args, **kwargs)
    return func(tensor.cpu(), *rest, **kwargs)


def explain_missing_value(error: Exception, func: Any, args: Sequence[Any]) -> None:
    """Add to an error that a tensor without data was asked for it, and what helps."""
    name = getattr(func, "__name__", "")
    is_meta = any(isinstance(a, torch.Tensor) and a.is_meta for a in args)
    is_explained = isinstance(error, MissingValueError) or hasattr(error, "__notes__")
    if name in VALUE_READERS and is_meta and not is_explained:
        error.add_note(
            f"meta_magic: {name}() needs the value of a tensor, and a meta tensor has "
            "none. Compute it under `with torch.device('cpu'):`, or keep shapes and "
            "branches independent of data."
        )
