"""Make factories build on meta, whatever device they are given.

Also constructors: ``torch.FloatTensor([1.0])`` ignores the default device and runs on
the CPU, no function mode sees it, and ``nn.Parameter(x)`` runs no operator. Without
this file a cell would hold real tensors, or parameters that no row made.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.recording.identities.call_sites import TORCH, TORCH_FILES
from meta_magic.recording.identities.device_plan import (
    CONTEXT,
    REAL_FACTORY_FILES,
    find_placement,
    is_default_on_meta,
    is_home,
    is_meta_by_name,
    must_be_real,
)
from meta_magic.recording.identities.storages import span_nbytes
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept.higher_order import make_below
from meta_magic.recording.intercept.moves import UNPICKLED, copy_shallowly, rebuild_on
from meta_magic.recording.intercept.real_tensors.capturable import is_capturable
from meta_magic.recording.intercept.reported_devices import (
    ADOPTED,
    MAKE_REAL,
    as_fake,
    gets_reported_device,
)
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.rows.constants import VALUE_FUNCTIONS, data_of
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import copy_to, is_python_excluded, read_scalar
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    device_constructors,
    fake_tensor_mode,
    functorch_interpreter,
)
from meta_magic.torch_private.replacing import MAKE_SUBCLASS, MAKE_TENSOR
from meta_magic.torch_private.tensor_internals import REBUILDING, current_autograd_node
from meta_magic.trace.signature import META

aten = torch.ops.aten

EMPTY: Final = aten.empty.memory_format
LIFT_FRESH: Final = aten.lift_fresh.default
COPY: Final = copy_to
SET: Final = aten.set_.source_Storage
LEGACY: Final = frozenset[Any]({EMPTY, LIFT_FRESH, COPY, SET})

NUMBER_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Tensor.__float__: float,
    Tensor.__int__: int,
    Tensor.__index__: int,
    Tensor.__bool__: bool,
    Tensor.__complex__: complex,
}
"""Methods that C++ calls for a tensor in a list of values, and their return types."""

N_POSITIONS: Final[dict[Any, int]] = {
    torch.sparse_coo_tensor: 1,
    torch.sparse_csr_tensor: 2,
    torch.sparse_csc_tensor: 2,
    torch.sparse_bsr_tensor: 2,
    torch.sparse_bsc_tensor: 2,
    torch.sparse_compressed_tensor: 2,
}
"""Constructors of sparse tensors, and how many of their arguments are positions."""

ONE_ELEMENT: Final = "only one element tensors can be converted to Python scalars"


def run_legacy(mode: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run on meta what a legacy constructor runs on the CPU."""
    if current_autograd_node() is not None or not is_default_on_meta():
        return NotImplemented
    device = kwargs.get("device")
    is_for_cpu = device is not None and device.type == "cpu"
    first = args[0]
    if func is EMPTY or func is COPY:
        is_ours = is_for_cpu and (func is EMPTY or first.is_meta)
        on_meta = {**kwargs, "device": META}
        return run(mode, func, args, on_meta) if is_ours else NotImplemented
    if func is LIFT_FRESH:
        return NotImplemented if first.is_meta else capture_real(mode, first)
    storage = args[1]
    if not first.is_meta or storage.device.type != "cpu":
        return NotImplemented
    real = torch.empty(0, dtype=first.dtype, device="cpu").set_(storage)
    return run(mode, SET, (first, capture_real(mode, real).untyped_storage()), {})


def run(mode: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator instead of another one."""
    return mode.__torch_dispatch__(func, (), args, kwargs)


def capture_real(mode: Any, real: Tensor) -> Any:
    """Return a meta tensor with the values of a real one, which becomes a constant."""
    return run(mode, COPY, (real,), {"device": META})


def read_number(mode: Any, func: Any, tensor: Tensor) -> Any:
    """Return the number that a constructor reads from a tensor in its list of values.

    Torch hides this read from all modes. ``NotImplemented`` if torch itself reads it,
    or refuses.
    """
    is_refused = func is Tensor.__index__ and tensor.dtype.is_floating_point
    if not is_python_excluded() or tensor.numel() != 1 or is_refused:
        return NotImplemented
    return NUMBER_READERS[func](run(mode, read_scalar, (tensor,), {}))


def read_new(args: Args) -> tuple[Any, Args] | None:
    """Return the newer function that does what ``x.new(...)`` does, and its arguments.

    On meta torch drops the values, and makes no sparse tensors. None if torch's own
    method works, as for a tensor.
    """
    tensor, *given = args
    is_dense = tensor.layout is torch.strided
    if tensor.is_meta and not is_dense and isinstance([*given, None][0], Tensor):
        return torch.sparse_coo_tensor, given
    is_one = len(given) == 1 and isinstance(given[0], (list, tuple))
    if is_one and not isinstance(given[0], torch.Size):
        return Tensor.new_tensor, args
    sizes = given[0] if is_one else given
    is_own = tensor.is_meta and is_dense
    if is_own or not all(isinstance(size, int) for size in sizes):
        return None
    return Tensor.new_empty, (tensor, tuple(sizes) or (0,))


def read_sparse(
    func: Any, args: Args, kwargs: Kwargs, make: Callable[..., Tensor]
) -> tuple[Args, Kwargs]:
    """Return a sparse constructor's arguments, with tensors for lists of values."""
    n_positions, device = N_POSITIONS[func], kwargs.get("device")
    if len(args) <= n_positions and "values" not in kwargs:  # a size alone
        return args, kwargs

    def read(value: Any, *, is_position: bool) -> Any:
        dtype = None if is_position else kwargs.get("dtype")
        if isinstance(value, Tensor):
            return value
        return make((value,), {"dtype": dtype, "device": device})

    parts = enumerate(args[: n_positions + 1])
    given = [read(value, is_position=index < n_positions) for index, value in parts]
    named = {
        name: read(value, is_position=name != "values")
        for name, value in kwargs.items()
        if name == "values" or name.endswith("indices")
    }
    return (*given, *args[n_positions + 1 :]), {**kwargs, **named}


def join_values(data: Any, like: Tensor, make: Callable[[Any], Tensor]) -> Tensor:
    """Return a tensor like ``like``, with the values of a list that has tensors."""
    parts = [make(value).reshape(-1) for value in flatten(data)]
    if sum(part.numel() for part in parts) != like.numel():
        raise ValueError(ONE_ELEMENT)
    joined = torch.cat(parts).reshape(like.shape)
    return joined.requires_grad_() if like.requires_grad else joined


def flatten(values: Any) -> list[Any]:
    """Return the numbers and tensors in nested lists, in order."""
    if not isinstance(values, (list, tuple)):
        return [values]
    return [value for item in values for value in flatten(item)]


class NewOfSubclass(RecordingReplacements):
    """Context manager that sees each tensor of a subclass when it is made.

    A parameter, for example, shares the storage of its source. Without this class a
    parameter could get the number of a dead tensor with the same address, storage and
    geometry.

    ``Labeled(x)``, for a subclass of the user's, runs without a mode: under a mode
    torch refuses to change the class of a tensor.
    """

    def __enter__(self) -> None:
        for owner, name in MAKE_SUBCLASS:
            self.replace_here(owner, {name: self._make})
        owner, name = MAKE_TENSOR
        self.replace(owner, name, make_of_subclass(getattr(owner, name)))

    def _make(self, plain: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        made = plain(*args, **kwargs)
        self._write.registry.forget(id(made), None)
        return made


def make_of_subclass(before: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors of a subclass by ``as_subclass``."""

    def make(kind: type[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if kind is Tensor or kwargs or not is_default_on_meta():
            return before(kind, *args, **kwargs)
        is_copy = len(args) == 1 and isinstance(args[0], Tensor)
        return (args[0] if is_copy else before(Tensor, *args)).as_subclass(kind)

    return make


OPS: Final = str(TORCH / "_ops.py")
"""The file whose frame is between an operator and its caller."""

BY_NAME: Final = "what was put on 'meta' by name is replayed on the device of the cell"
SHARING: Final = frozenset({torch.as_tensor, torch.asarray})
FROM_NUMPY: Final = SHARING.union({torch.tensor})

UNINITIALIZED: Final = (
    "where they would be uninitialized: meta_magic.materialize gives them their values "
    "(see its init=)"
)
TO_EMPTY: Final = frozenset(
    code for code in nn.Module.to_empty.__code__.co_consts if isinstance(code, CodeType)
)
"""Code in which ``Module.to_empty`` makes each tensor."""

NEW: Final[Any] = torch.Tensor.new
LIKE: Final = frozenset[Any](
    {torch.empty_like, torch.full_like, torch.ones_like, torch.rand_like}
    | {torch.randint_like, torch.randn_like, torch.zeros_like}
    | {torch.Tensor.new_empty, torch.Tensor.new_empty_strided, torch.Tensor.new_full}
    | {torch.Tensor.new_ones, torch.Tensor.new_tensor, torch.Tensor.new_zeros}
)
"""Functions that make a tensor on the device of another one."""


class Factories:
    """Runs the functions that make tensors."""

    def __init__(self, write: Writers, shared: SharedMemory) -> None:
        self._registry, self._plan = write.registry, write.plan
        self._constants, self._diagnostics = write.constants, write.diagnostics
        self._shared = shared
        self._constructors = device_constructors()

    def make(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Call a function that makes tensors, and keep the values that it was given."""
        if fake_tensor_mode() is not None:
            return self._make_fake(func, args, kwargs)
        is_transformed = functorch_interpreter() is not None and func in VALUE_FUNCTIONS
        if not is_transformed or isinstance(data_of(func, args, kwargs), torch.Tensor):
            return self._make_planned(func, args, kwargs, caller)

        def make(*below: Any) -> Any:
            return self._make_planned(func, below, kwargs, caller)

        return make_below(make, args)

    def _make_planned(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> Any:
        """Call a factory for which no tensor subclass replaces what it makes."""
        if caller.f_code is REBUILDING:
            return self._rebuild(func, args, kwargs, caller)
        if caller.f_code.co_name in MAKE_REAL:
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        adopted = ADOPTED[func](args, kwargs) if func in ADOPTED else None
        if adopted is not None:
            return adopted.to(META)
        if func in N_POSITIONS:
            values = partial(self._make_planned, torch.tensor, caller=caller)
            args, kwargs = read_sparse(func, args, kwargs, values)
        while caller.f_code.co_filename == OPS and caller.f_back is not None:
            caller = caller.f_back
        make = self._make if kwargs.get("device") is None else self._make_named
        made = make(func, args, kwargs, caller)
        if func not in VALUE_FUNCTIONS:
            return made
        return self._keep_values(func, made, args, kwargs, caller)

    def _make_fake(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a factory under a ``FakeTensorMode``.

        A fake tensor on a GPU that torch lacks would end the process: it is on meta.
        """
        named = kwargs.get("device")
        if named is None and func not in self._constructors:
            return func(*args, **kwargs)
        device = torch.device(self._plan.home if named is None else named)
        return func(*args, **{**kwargs, "device": as_fake(device)})

    def _keep_values(
        self, func: Any, made: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> Any:
        """Keep the values of a tensor that was made from them, and return it."""
        if func is torch.Tensor.new_tensor and kwargs.get("device") is None:
            self._plan.set_placements([made], self._plan.placement_of(args[0]) or META)
        data = data_of(func, args, kwargs)
        given = tensors_in(data) if isinstance(data, (list, tuple)) else ()
        if made.is_meta and any(tensor.is_meta for tensor in given):
            return self._join(data, made)
        # Torch itself stacks them.
        is_torchs = caller.f_code.co_filename.startswith(TORCH_FILES)
        is_shared = func in SHARING and not (kwargs.get("copy") or is_torchs)
        if is_shared and isinstance(data, np.ndarray):
            with DisableTorchFunction(), DisableTorchDispatch():
                return self._shared.adopt(data, func(data, device="cpu"), made)
        self._constants.note_values(made, func, args, kwargs)
        return made

    def make_alike(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> Any:
        """Handle ``x.new``, and ``zeros_like(real)`` unless torch's own code asks."""
        like = args[0]
        if not like.is_meta and not is_capturable(like):
            return NotImplemented
        if func is NEW:
            func, args = read_new(args) or (NotImplemented, args)
            if func is not NotImplemented and like.is_meta:
                return self.make(func, args, kwargs, caller)
        is_torchs = caller.f_code.co_filename.startswith(TORCH_FILES)
        is_placed = is_torchs or kwargs.get("device") is not None
        if func is NotImplemented or like.is_meta or is_placed:
            return NotImplemented
        return self.make(func, args, {**kwargs, "device": find_placement(like)}, caller)

    def _join(self, data: Any, made: torch.Tensor) -> torch.Tensor:
        """Return a tensor of numbers and tensors, whose values need not be known."""
        plan = self._plan
        placement = plan.placement_of(made) or META

        def make(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                tensor = value.detach()
                is_there = plan.placement_of(tensor) in (placement, None)
                options = {"dtype": made.dtype, "device": META, "copy": not is_there}
                return self._make_at(placement, torch.Tensor.to, (tensor,), options)
            number = torch.tensor([value], dtype=made.dtype, device=META)
            self._constants.note_values(number, torch.tensor, ([value],), {})
            plan.set_placements([number], placement)
            return number

        return join_values(data, made, make)

    def _make(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Call a factory that was given no device."""
        if func in FROM_NUMPY:
            self._check_float64(func, args, kwargs)
        takes_device = func in self._constructors and "out" not in kwargs
        takes_device &= func is not torch.normal or not tensors_in(args, kwargs)
        if not takes_device or caller.f_code.co_filename in REAL_FACTORY_FILES:
            return func(*args, **kwargs)
        if self._plan.default is None:
            return func(*args, **{**kwargs, "device": META})
        return self._make_at(self._plan.default, func, args, kwargs)

    def _make_named(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType
    ) -> Any:
        """Call a factory that was given a device."""
        device = kwargs["device"]
        if type(device) is int and not self._plan.is_real:
            device = torch.device("cuda", device)
        if func in self._constructors and is_meta_by_name(device, caller):
            self._diagnostics.note_caveat(BY_NAME)
            return self._registry.make_on_meta(lambda: func(*args, **kwargs))
        out = kwargs.get("out")
        if isinstance(out, torch.Tensor) and out.is_meta:
            where = self._plan.placement_of(out) or self._plan.home
            if torch.device(device).type == where.type:
                return func(*args, **{**kwargs, "device": META})
        read = torch.device(device)
        if "out" in kwargs or must_be_real(self._plan, read, device, caller):
            return func(*args, **kwargs)
        is_context = caller.f_code is CONTEXT and is_home(device)
        if is_context or (device is self._plan.home and gets_reported_device(caller)):
            device = META  # the reported device, which it got from us
        if caller.f_code in TO_EMPTY:
            text = f"to_empty planned tensors on {device}, {UNINITIALIZED}"
            self._diagnostics.note("place", text)
        if torch.device(device) != META:
            return self._make_at(self._plan.read(device), func, args, kwargs)
        if func in self._constructors:
            return self._make(func, args, {**kwargs, "device": None}, caller)
        return func(*args, **{**kwargs, "device": META})

    def _make_at(
        self, wanted: torch.device, func: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        plan, before = self._plan, self._plan.wanted
        plan.wanted = wanted
        try:
            made = func(*args, **{**kwargs, "device": META})
        finally:
            plan.wanted = before
        # Some tensors were made without any operator.
        plan.set_placements(tensors_in(made), wanted)
        return made

    def _rebuild(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Make the tensor that Python copies; note an unpickled one without content."""
        copied = copy_shallowly(caller, self._registry)
        if copied is not None:
            return copied
        self._diagnostics.note("load", UNPICKLED)
        self._diagnostics.note_caveat(UNPICKLED)
        with DisableTorchDispatch():
            like = func(*args, **kwargs)
        return rebuild_on(UntypedStorage(span_nbytes(like), device=like.device), like)

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
            self._diagnostics.note("float64", text)
