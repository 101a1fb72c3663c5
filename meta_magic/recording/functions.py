"""The function mode: makes factories build on meta, and says which call is running."""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType, MethodWrapperType
from typing import Any, Final

import numpy as np
import torch

from meta_magic.recording.attention import AttentionOf
from meta_magic.recording.constants import VALUE_FUNCTIONS
from meta_magic.recording.dispatch import Recorder
from meta_magic.recording.function_cache import build_key, is_alone, is_pure
from meta_magic.recording.guard import without_modes
from meta_magic.recording.indexing import INDEXING, prepare_index
from meta_magic.recording.initializers import IS_META, is_loading, read_initializer
from meta_magic.recording.live import tensors_in
from meta_magic.recording.mixed import explain_mix
from meta_magic.recording.places import TORCH, Places
from meta_magic.recording.reading import DATA_READERS, describe_values, read_data
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
REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

DEVICE_TEST: Final = "get_torch_context_manager_or_global_device"
"""The function of transformers that makes a tensor to see on which device it lies, and
leaves out all initialization if that is meta: it is told the CPU."""

DEVICE_CHOICE: Final = "grouped_mm_experts_forward"
"""The function of transformers that looks at the device to choose a dtype that its
kernels take: it is told the device whose kernels are recorded."""

ASKED: Final = frozenset[Any]({IS_META, torch.Tensor.device})
"""Attributes whose answer may depend on who asks."""

BY_NAME: Final = "what was put on 'meta' by name counts as on the device of the cell"
UNLOADABLE: Final = (
    "load_state_dict cannot copy tensors on meta, which have no data, into a real "
    "module (see meta_magic.materialize for the module that they are from)"
)
FROM_NUMPY: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class FunctionRecorder(DeviceContext):  # type: ignore[misc]
    """Stands where ``with torch.device("meta")`` would, and knows the running call.

    A ``DeviceContext`` so that ``torch.get_default_device()`` says meta, and so that
    each call pays for one mode instead of two.

    Attributes:
        notes: What is rarely meant, such as float64 that leaked in from numpy.
        doubts: What was put on meta by name, with its line.
        attention: Notes which kernels attention is.
    """

    attention: AttentionOf

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

    def note(self, kind: str, text: str) -> None:
        """Note something about the line that runs now."""
        line = self._places.current_line()
        self.notes.setdefault(Note(kind=kind, text=text, line=line))

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, on meta if it is a factory that was told no device."""
        if type(func) is MethodWrapperType and not kwargs:
            if func.__self__ in ASKED:
                return self._answer(func, args, sys._getframe(1))
            return func(*args)  # an attribute such as ``shape``: runs no operator
        places = self._places
        places.function = func
        places.frame = sys._getframe(1)
        places.place = 0
        try:
            if func in INDEXING:
                keep = self._dispatch.constants.note_values
                args = prepare_index(args, self.attention.device, keep)
            if func in DATA_READERS and args and args[0].is_meta:
                # Torch refuses a meta tensor before any operator is called.
                return self._read_data(func, args, kwargs or {})
            if self._is_serving and self._is_pure(func) and is_alone():
                return self._serve(func, args, kwargs)
            if func in self._constructors or func in VALUE_FUNCTIONS:
                return self._construct(func, args, kwargs or {}, places.frame)
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            explain_mix(error, tensors_in(args, kwargs))
            raise
        finally:
            places.function = places.frame = None
            places.place = 0

    def _read_data(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a method that reads data; what is printed leaves no trace."""
        if func is not torch.Tensor.__repr__:
            return read_data(func, args, kwargs)
        self._registry.note_deaths()
        real = self._dispatch.values.peek(args[0], self._registry.read(args[0]))
        with without_modes():
            return describe_values(args[0], real)

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
        if func is torch.asarray and args and type(args[0]) is torch.UntypedStorage:
            return self._adopt_storage(args[0], kwargs)
        if func in self._constructors:
            kwargs = self._choose_device(func, args, kwargs, caller)
        made = func(*args, **kwargs)
        if func in VALUE_FUNCTIONS:
            self._dispatch.constants.note_values(made, func, args, kwargs)
        return made

    def _adopt_storage(self, storage: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the tensor of a storage, as safetensors makes it; from outside."""
        device = kwargs.get("device") or self.device
        with DisableTorchDispatch():
            made = torch.asarray(storage, **{**kwargs, "device": storage.device})
        return made.to(device)

    def _answer(self, func: Any, args: Sequence[Any], frame: FrameType) -> Any:
        """Tell on which device a tensor is, or whether on meta."""
        if func.__self__ is IS_META:
            return self._answer_is_meta(func, args, frame)
        is_choice = frame.f_code.co_name == DEVICE_CHOICE
        return torch.device(self.attention.device) if is_choice else func(*args)

    def _answer_is_meta(self, func: Any, args: Sequence[Any], frame: FrameType) -> bool:
        """Tell whether a tensor is on meta; record who would do nothing then."""
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
        elif is_loading(frame):
            if not is_meta and frame.f_locals["input_param"].is_meta:
                self.note("load", UNLOADABLE)
            return False  # torch warns that a copy does nothing: it is recorded
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
            if template.kernel:
                self.attention.note(template.kernel, template.n_rows)
            return rows.append_function(template, inputs)
        n_choices = len(self.attention.choices)
        captured = rows.watch(inputs, lambda: func(*args, **(kwargs or {})))
        with DisableTorchFunction():
            template = learn(self._registry, captured)
        if template is None:  # a view, say: not worth a key the next time
            self._is_pure_by_function[func] = False
        else:
            for choice in self.attention.choices[n_choices:]:
                template.kernel = choice.text
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
        is_choice = caller.f_code.co_name == DEVICE_CHOICE  # told another device
        is_told = device is not None and not is_choice
        if is_told or caller.f_code.co_filename in REAL_FACTORY_FILES:
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
            text = f"torch.{func.__name__} took float64 over from numpy (see dtype=)"
            self.note("float64", text)
