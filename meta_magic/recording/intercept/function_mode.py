"""The function mode: makes factories build on meta, and says which call is running.

torch removes the mode while it handles a call, so also while ``backward()`` runs.
Without :class:`BackwardPasses` a hook would make real tensors and could read no values.
"""

import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType, MethodWrapperType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from meta_magic.recording.as_device.attention import DeviceAttention
from meta_magic.recording.as_device.oracle.cpu_refusals import Refusals, name_types
from meta_magic.recording.identities.call_sites import Running
from meta_magic.recording.identities.device_plan import has_carried_placement
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept.data_readers import (
    DATA_PTR,
    DATA_READERS,
    PACKING,
    SHARE_MEMORY,
    TO_NUMPY,
    Packer,
    check_readable,
    read_data,
    run_sobol,
)
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.factories import (
    LIKE,
    NEW,
    NUMBER_READERS,
    Factories,
    read_number,
)
from meta_magic.recording.intercept.indexing import INDEXING, prepare_index
from meta_magic.recording.intercept.moves import (
    DEEPCOPY,
    DEVICE_READERS,
    MOVES,
    Mover,
    copy_deeply,
    explain_mix,
    is_cast,
)
from meta_magic.recording.intercept.real_tensors.capturable import MustBorrow
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.repeated_calls import REPEATED, RepeatedCalls
from meta_magic.recording.intercept.reported_devices import (
    GET_DEVICE,
    REPORTED,
    DataAttribute,
    ReportedAttributes,
)
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.rows.constants import VALUE_FUNCTIONS
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import (
    DeviceContext,
    DisableTorchFunction,
    device_constructors,
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.torch_private.replacing import RUN_BACKWARD, Replacements
from meta_magic.torch_private.snapshot import has_gpu
from meta_magic.torch_private.tensor_internals import (
    SOBOL,
    TAKES_DATA,
    has_version,
    set_versions,
    unravel_below,
    version_of,
)
from meta_magic.trace.signature import META

PIN_MEMORY: Final[Any] = torch.Tensor.pin_memory
UNRAVEL: Final[Any] = torch.unravel_index
HANDLED: Final = DATA_READERS.union(
    {DEEPCOPY, NEW, UNRAVEL, TAKES_DATA},
    MOVES,
    GET_DEVICE,
    NUMBER_READERS.keys() | PACKING,
    LIKE,
    DEVICE_READERS,
)
"""Functions that torch handles differently on meta, or for real tensors."""

# Kept from the import: another mode may replace it.
frame_at = sys._getframe


class FunctionMode(DeviceContext):
    """Acts as ``with torch.device("meta")`` would, and knows the running call.

    A ``DeviceContext``, so that each call pays for one mode instead of two.
    """

    def __init__(
        self,
        write: Writers,
        attention: DeviceAttention,
        dispatch: DispatchMode,
        capture: ConstantCapture,
        refusals: Refusals,
        shared: SharedMemory,
    ) -> None:
        # Not the base's: its torch.device(...) would call an outer mode.
        self.device = META
        self.prev_mode = None
        self.registry, self.sites = write.registry, write.sites
        self._write, self._plan = write, write.plan
        self._attention = attention
        self._autocast = attention.autocast
        self._dispatch = dispatch
        self._constructors = device_constructors() | VALUE_FUNCTIONS
        self._handled = HANDLED | INDEXING | self._constructors
        self._repeated = RepeatedCalls(write, dispatch.find_number)
        self._factories = Factories(write, shared)
        self._capture = capture
        self._mover = Mover(write, capture)
        self._packer = Packer(write)
        data = DataAttribute(write, capture)
        self._reported = ReportedAttributes(write, data, dispatch)
        self._answer = self._reported.answer
        self._refusals = refusals
        self._shared = shared
        self.watched: SharedMemory | None = None

    def __enter__(self) -> None:
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
        """Call ``func``; a factory without a device builds on meta."""
        if type(func) is MethodWrapperType and not kwargs:
            # Other attributes, such as ``shape``, run no operator.
            is_other = func.__self__ not in REPORTED
            return func(*args) if is_other else self._answer(func, args, frame_at(1))
        caller = frame_at(1)
        sites, missed = self.sites, None
        if (
            func in REPEATED
            and args
            and not kwargs
            and self.watched is None
            and not self._autocast.is_on
        ):
            returned, missed = self._repeated.run(func, args, caller)
            if returned is not NotImplemented:
                return returned
        before = sites.running
        sites.running = running = Running(func, caller, args)
        try:
            if missed is not None:
                run = partial(self._run, func, args, {}, caller)
                return self._repeated.learn(missed, run)
            if (
                func not in self._handled
                and self.watched is None
                and not self._autocast.is_on
                and not (kwargs and ("device" in kwargs or "out" in kwargs))
            ):  # nearly all calls
                return func(*args, **kwargs) if kwargs else func(*args)
            return self._run(func, args, kwargs or {}, caller)
        except Exception as error:
            again = self._prepare(error, func, args, kwargs or {})
            if again is None:
                raise
        finally:
            sites.running = before
        args, kwargs = again
        running.args, sites.running = args, running
        try:
            return self._run(func, args, kwargs, caller)
        finally:
            sites.running = before

    def _run(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        if self.watched is not None:
            self.watched.update_read(args, kwargs)
        has_target = args or func in DEVICE_READERS
        if func in HANDLED and has_target and not is_cast(func, args, kwargs):
            returned = self._handle(func, args, kwargs, caller)
            if returned is not NotImplemented:
                return returned
        elif func in INDEXING and args:
            device, note = self._attention.device, self._write.constants.note_values
            func, args = prepare_index(func, args, device, note)
            return func(*args)
        if self._autocast.is_on:
            args, kwargs = self._capture.capture_mixed(func, args, kwargs)
        names_device = kwargs and kwargs.get("device") is not None
        if names_device or func in self._constructors:
            return self._factories.make(func, args, kwargs, caller)
        out = kwargs.get("out")
        is_meta = self._attention.device == "meta"  # there torch counts it, too
        if is_meta or not isinstance(out, Tensor) or not has_version(out):
            return func(*args, **kwargs)
        before, version = self._dispatch.n_resized, version_of(out)
        returned = func(*args, **kwargs)
        if self._dispatch.n_resized > before and version_of(out) > version + 1:
            # A composed operator resizes by ``resize_``, which counts where a mode is.
            set_versions((out,), (version_of(out) - 1,))
        return returned

    def _prepare(
        self, error: Exception, func: Any, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs] | None:
        """Return the arguments to call a failed function again with; None to raise."""
        if isinstance(error, (RuntimeError, MustBorrow)):
            if args and is_lazy(args[0]):  # its shape, which an operator needs, raises
                with DisableTorchFunction():
                    return (args[0].as_subclass(Tensor), *args[1:]), kwargs
            again = self._capture.prepare(error, func, args, kwargs)
            if again is not None:
                return again
            explain_mix(error, tensors_in(args, kwargs))
        self._refusals.reword(func, args, kwargs, error)
        name_types(error, self._attention.device)
        return None

    def _handle(  # noqa: PLR0911  one for each kind of function
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> Any:
        """Do what torch does differently, or refuses, on meta."""
        if func in DEVICE_READERS:
            return self._mover.read_device(func, args, kwargs)
        if func in MOVES:
            return self._mover.move(func, args, kwargs, caller)
        if func in LIKE or func is NEW:
            return self._factories.make_alike(func, args, kwargs, caller)
        if func in GET_DEVICE and (args[0].is_meta or has_carried_placement()):
            return self._reported.number(args[0], caller)
        if not args[0].is_meta:
            is_pinned = func is PIN_MEMORY and not has_gpu()
            return args[0] if is_pinned else NotImplemented
        if func is TAKES_DATA:
            return self._reported.data.is_taken(func, *args)
        return self._read_data(func, args, kwargs)

    def _read_data(  # noqa: PLR0911  as well
        self, func: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """Call a method that reads data, or copies it; as ``_handle``."""
        if func is UNRAVEL:
            with self:  # so that constants are recorded
                return unravel_below(*args, **kwargs)
        if func in SOBOL:
            return run_sobol(func, args, kwargs, self)
        if func in NUMBER_READERS:
            return read_number(self._dispatch, func, args[0])
        if func in PACKING:
            return self._packer.run(func, args)
        if func is DEEPCOPY:
            return copy_deeply(args, self.registry)
        if func is DATA_PTR:
            func(*args)  # torch refuses a tensor without storage
            return self._shared.find_address_of(args[0])
        check_readable(func, args, kwargs, self._plan.placement_of(args[0]))
        if func in TO_NUMPY:
            return self._shared.give(func, args, kwargs)
        if func is SHARE_MEMORY:
            self._shared.separate(args[0])
        return read_data(func, args, kwargs, self._write.note)


class BackwardPasses(Replacements):
    """Keeps the function mode active while autograd runs, within the block."""

    def __init__(self, functions: FunctionMode, dispatch: DispatchMode) -> None:
        super().__init__()
        self._functions = functions
        self._dispatch = dispatch

    def __enter__(self) -> None:
        owner, name = RUN_BACKWARD
        self.replace_here(owner, {name: self._run})

    def _run(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if self._functions in function_mode_stack():
            return plain(*args, **kwargs)
        dispatch = self._dispatch
        push_function_mode(self._functions)
        before, dispatch.is_in_backward = dispatch.is_in_backward, True
        try:
            return plain(*args, **kwargs)
        finally:
            dispatch.is_in_backward = before
            pop_function_mode()
