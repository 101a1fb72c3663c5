"""The function mode: makes factories build on meta, and says which call is running."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType, MethodWrapperType
from typing import Any, Final

import numpy as np
import torch

from meta_magic.recording.as_device.attention import AttentionOf
from meta_magic.recording.identities.frame_kinds import TORCH
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.places import Places
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.copies import (
    DEEPCOPY,
    REBUILDING,
    UNPICKLED,
    copy_deeply,
    copy_flatly,
    rebuild_without_content,
)
from meta_magic.recording.intercept.data_readers import (
    DATA_READERS,
    describe_values,
    read_data,
)
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.indexing import INDEXING, prepare_index
from meta_magic.recording.intercept.initializers import (
    IS_META,
    is_loading,
    read_initializer,
)
from meta_magic.recording.intercept.libraries import ADOPTED, MAKE_REAL, TOLD_DEVICE
from meta_magic.recording.intercept.mixed_devices import explain_mix
from meta_magic.recording.intercept.served_functions import ServedFunctions
from meta_magic.recording.intercept.value_source import ValueSource
from meta_magic.recording.rows.constants import VALUE_FUNCTIONS, Constants
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.modes import (
    DeviceContext,
    DisableTorchDispatch,
    device_constructors,
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.torch_private.module_internals import LOADED
from meta_magic.torch_private.snapshot import WithoutModes

__all__ = ["FunctionMode"]

META: Final = torch.device("meta")
REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

DATA: Final[Any] = torch.Tensor.data
READERS: Final = DATA_READERS | {DEEPCOPY}
"""Methods that torch treats otherwise on meta, before any operator."""

ASKED: Final = frozenset[Any]({IS_META, torch.Tensor.device, DATA})
"""Attributes whose answer may depend on who asks, or makes another tensor."""

BY_NAME: Final = "what was put on 'meta' by name counts as on the device of the cell"
UNLOADABLE: Final = (
    "load_state_dict cannot copy tensors on meta, which have no data, into a real "
    "module (see meta_magic.materialize for the module that they are from)"
)
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


class FunctionMode(DeviceContext):
    """Stands where ``with torch.device("meta")`` would, and knows the running call.

    A ``DeviceContext`` so that ``torch.get_default_device()`` says meta, and so that
    each call pays for one mode instead of two.

    Args:
        registry: Numbers of tensors.
        places: Is told which call is running.
        constants: Keeps values that come from Python.
        findings: Takes what is rarely meant, such as float64 that leaked in from numpy,
            and what was put on meta by name.
        attention: Knows whose kernels are recorded.
        dispatch: Records what stands in the place of an operator.
        served: Answers whole calls that were seen before.
        values: Knows what a tensor holds that is printed.
    """

    def __init__(  # noqa: PLR0913  the parts that a call of torch may concern
        self,
        *,
        registry: TensorRegistry,
        places: Places,
        constants: Constants,
        findings: Findings,
        attention: AttentionOf,
        dispatch: DispatchMode,
        served: ServedFunctions,
        values: ValueSource,
    ) -> None:
        # Not the base's: its torch.device(...) would be a call to a mode outside.
        self.device = META
        self.prev_mode = None
        self._registry = registry
        self._places = places
        self._constants = constants
        self._findings = findings
        self._attention = attention
        self._dispatch = dispatch
        self._served = served
        self._values = values
        self._is_serving = False
        self._constructors = device_constructors()

    def __enter__(self) -> None:
        # A function mode that is there already must see every call.
        stack = function_mode_stack()
        self._is_serving = self._served.is_serving and all(
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
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Call ``func``, on meta if it is a factory that was told no device."""
        if type(func) is MethodWrapperType and not kwargs:
            if func.__self__ in ASKED:
                return self._tell(func, args, sys._getframe(1))
            return func(*args)  # an attribute such as ``shape``: runs no operator
        caller = sys._getframe(1)
        places = self._places
        places.running = [func, caller, None]
        try:
            if func in INDEXING:
                keep = self._constants.note_values
                device = self._attention.device
                func, args = prepare_index(func, args, device, keep)
            if func in READERS and args and args[0].is_meta:
                # Torch refuses a meta tensor before any operator is called.
                return self._read_data(func, args, kwargs or {})
            if self._is_serving and self._served.can_serve(func):
                return self._served.serve(func, args, kwargs)
            if func in self._constructors or func in VALUE_FUNCTIONS:
                return self._construct(func, args, kwargs or {}, caller)
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            explain_mix(error, tensors_in(args, kwargs))
            raise
        finally:
            places.running = None

    def _read_data(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a method that reads data; what is printed leaves no trace."""
        if func is DEEPCOPY:
            return copy_deeply(args, self._registry.note_alias)
        if func is not torch.Tensor.__repr__:
            return read_data(func, args, kwargs)
        self._registry.note_deaths()
        real = self._values.peek(args[0], self._registry.read(args[0]))
        with WithoutModes():
            return describe_values(args[0], real)

    def _construct(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
        caller: FrameType,
    ) -> Any:
        """Call a factory; keep the values of one that makes a tensor from some."""
        if caller.f_code is REBUILDING:
            return self._rebuild(func, args, kwargs, caller)
        if caller.f_code.co_name in MAKE_REAL:
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        adopt = ADOPTED.get(func)
        adopted = None if adopt is None else adopt(args, kwargs)
        if adopted is not None:
            return adopted.to(kwargs.get("device") or self.device)
        is_aside = False
        if func in self._constructors:
            is_aside = is_meta_by_name(kwargs.get("device"), caller)
            kwargs = self._choose_device(func, args, kwargs, caller)
        make = partial(func, *args, **kwargs)
        if is_aside:
            self._findings.doubt(BY_NAME)
        made = self._registry.put_aside(make) if is_aside else make()
        if func in VALUE_FUNCTIONS:
            self._constants.note_values(made, func, args, kwargs)
        return made

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

    def _tell(self, func: Any, args: Args, asker: FrameType) -> Any:
        """Tell on which device a tensor is, or whether on meta; note ``.data``."""
        if func.__self__ is IS_META:
            return self._tell_is_meta(func, args, asker)
        if func.__self__ is DATA:
            self._registry.note_alias(args[-1])  # read, or given to another
            return func(*args)
        if asker.f_code.co_name in TOLD_DEVICE:
            return torch.device(self._attention.device)
        return func(*args)

    def _tell_is_meta(self, func: Any, args: Args, asker: FrameType) -> bool:
        """Tell whether a tensor is on meta; record who would do nothing then."""
        is_meta: bool = func(*args)
        initializer = read_initializer(asker) if is_meta else None
        if initializer is not None:
            self._places.running = [initializer.function, asker, None]
            arguments = initializer.read_arguments(asker)
            try:
                with DisableTorchDispatch():
                    self._dispatch.__torch_dispatch__(initializer, (), *arguments)
                    initializer.count_writes(arguments[0])
            finally:
                self._places.running = None
        elif is_loading(asker):
            if not is_meta and asker.f_locals[LOADED].is_meta:
                self._findings.note("load", UNLOADABLE)
            return False  # torch warns that a copy does nothing: it is recorded
        return is_meta

    def _choose_device(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
        caller: FrameType,
    ) -> Mapping[str, Any]:
        """Return the keyword arguments of a factory, on meta unless it was told."""
        if func in FROM_NUMPY:
            self._check_float64(func, args, kwargs)
        device = kwargs.get("device")
        is_choice = caller.f_code.co_name in TOLD_DEVICE  # told another device
        is_told = (device is not None and not is_choice) or "out" in kwargs
        # Of tensors it needs no device, and takes none.
        is_told = is_told or (func is torch.normal and bool(tensors_in(args, kwargs)))
        if is_told or caller.f_code.co_filename in REAL_FACTORY_FILES:
            return kwargs
        return {**kwargs, "device": self.device}

    def _check_float64(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
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
            self._findings.note("float64", text)
