"""Answer what makes and initializes parameters, as it did before.

A model that is built calls few functions, and most of them often: ``torch.empty`` with
a size, ``nn.init.kaiming_uniform_`` of a weight like others. Each is one operator, of
which nothing is new but the tensor.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter, init

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.identities.tensors import Seen, TensorRegistry
from meta_magic.recording.intercept.libraries import LIBRARIES, MAKE_REAL
from meta_magic.recording.intercept.named_devices import REAL_FACTORY_FILES
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.entries import PLAIN, Entry, Kind, plain_float
from meta_magic.recording.signatures.function_keys import SEQUENCES, is_alone
from meta_magic.recording.signatures.learning import Captured
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    is_deterministic,
)
from meta_magic.torch_private.module_internals import is_of_torch
from meta_magic.torch_private.tensor_internals import REBUILDING
from meta_magic.trace.program import HEADER

__all__ = ["FACTORIES", "ServedMakers"]

FACTORIES: Final = frozenset[Any](
    {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn}
)
"""Those that are served: what they make is decided by sizes and a dtype."""

INITIALIZERS: Final = frozenset(
    {"uniform_", "normal_", "constant_", "kaiming_uniform_", "kaiming_normal_"}
)
"""Names of the functions of ``nn.init`` that the function mode meets, and that are
decided by the tensor's geometry. They turn gradients off themselves."""

METHODS: Final = frozenset[Any](
    {Tensor.zero_, Tensor.fill_, Tensor.uniform_, Tensor.normal_}
)
"""What other initializers call."""

Run: TypeAlias = Callable[[Any, Args, Kwargs, FrameType], Any]
Key: TypeAlias = tuple[object, ...]
default_dtype = torch.get_default_dtype
is_grad_enabled = torch.is_grad_enabled


class ServedMakers:
    """Serves factories and initializers whose like was seen before.

    Args:
        registry: Numbers of tensors.
        rows: Where their operators are written.
        entry_by_key: What was learnt of them.
        plan: Knows where the code wants what.

    Attributes:
        served: The functions that are served, each with the attribute by which it
            leaves a tensor as it is, None without one. Emptied where no more of them
            may be.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        rows: RowWriter,
        entry_by_key: dict[Any, Any],
        plan: DevicePlan,
    ) -> None:
        self.served = find_writers() | dict[Any, str | None].fromkeys(FACTORIES)
        self._registry = registry
        self._rows = rows
        self._entry_by_key = entry_by_key
        self._plan = plan

    def answer(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType, run: Run
    ) -> Any:
        """Do what a function does that makes or initializes a tensor.

        Args:
            func: The function, one of ``served``.
            args: Its positional arguments.
            kwargs: Its others.
            caller: Who calls it.
            run: Does it where nothing is known of it.
        """
        if not is_alone():
            return run(func, args, kwargs, caller)
        if self._registry.freed:
            self._registry.note_deaths()
        if func not in FACTORIES:
            return self._write(func, args, kwargs, caller, run)
        plan = self._plan
        if plan.default is None and plan.wanted is None and not is_real(caller):
            key = build_factory_key(func, args, kwargs)
            entry = self._entry_by_key.get(key)
            if entry is not None:
                return self._make_known(entry)
            if key is not None:
                call = partial(run, func, args, kwargs, caller)
                return self._learn(key, (), call)
        return run(func, args, kwargs, caller)

    @unbroken
    def _make_known(self, entry: Entry) -> Tensor:
        """Return a new tensor, and write the row of the factory that makes such."""
        geometry = entry.outputs[0]
        below = DisableTorchDispatch()  # ``with`` takes as long again
        try:
            made = geometry.make()
        finally:
            del below
        self._rows.append_alone(entry, (self._registry.add_fresh(made, geometry),))
        return made

    def _write(
        self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType, run: Run
    ) -> Any:
        """Do what an initializer does to a tensor, and return that."""
        tensor: Any = args[0] if args else kwargs.get("tensor")
        is_in_reach = is_writable(tensor, self.served[func]) and not (
            func in METHODS and tensor.requires_grad and is_grad_enabled()
        )
        if not is_in_reach:
            return run(func, args, kwargs, caller)
        registry = self._registry
        seen = registry.find(tensor)
        geometry = registry.geometry_of(tensor) if seen is None else seen[2]
        key = build_writer_key(func, geometry, args, kwargs)
        entry = self._entry_by_key.get(key)
        if entry is not None:
            return self._write_known(entry, tensor, seen, geometry)
        if key is None or not geometry.is_servable:
            return run(func, args, kwargs, caller)
        return self._learn(key, (tensor,), partial(run, func, args, kwargs, caller))

    @unbroken
    def _write_known(
        self, entry: Entry, tensor: Tensor, seen: Seen | None, geometry: LiveGeometry
    ) -> Tensor:
        """Count a write of a tensor, and write the row of what does it."""
        add = self._registry.add_seen
        number = add(tensor, geometry) if seen is None else seen[0]
        increment_version(tensor)
        self._rows.append_alone(entry, (number, number))
        return tensor

    def _learn(self, key: Key, tensors: Args, run: Callable[[], Any]) -> Any:
        """Run what is not known yet, and keep what it did if that was one operator."""
        captured = self._rows.watch(tensors, run)
        entry = find_entry(captured, Kind.IN_PLACE if tensors else Kind.PURE)
        if entry is not None:
            self._entry_by_key[key] = entry
        return captured.returned


def is_real(caller: FrameType) -> bool:
    """Whether who calls a factory means something else by it than is made."""
    code = caller.f_code
    return (
        code is REBUILDING
        or code.co_name in MAKE_REAL
        or code.co_filename in REAL_FACTORY_FILES
    )


def find_writers() -> dict[Any, str | None]:
    """Return the initializers that are served.

    With the attribute that keeps each from what has it, if there is one.
    """
    writers = dict[Any, str | None].fromkeys(METHODS)
    functions = [getattr(init, name) for name in INITIALIZERS]
    writers |= dict.fromkeys(filter(is_of_torch, functions))
    for library in LIBRARIES:
        there = sys.modules.get(library.initializers)
        known = vars(there) if there is not None else {}
        functions = [known[name] for name in INITIALIZERS.intersection(known)]
        own = [f for f in functions if f.__module__ == library.initializers]
        writers |= dict.fromkeys(own, library.is_initialized)
    return writers


def is_writable(tensor: Any, is_initialized: str | None) -> bool:
    """Whether a tensor is a plain one, which an initializer may be served for."""
    kind = type(tensor)
    return (
        (kind is Tensor or kind is Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_inference()
        and not (is_initialized and getattr(tensor, is_initialized, False))
    )


def find_entry(captured: Captured, kind: Kind) -> Entry | None:
    """Return the entry of the one operator that was run, if it is of a kind.

    Of a factory's whose row has just what was made, or of one that wrote its tensor.
    """
    if len(captured.rows) != 1 or captured.deaths:
        return None
    entry, words = captured.rows[0]
    numbers = words[HEADER:]
    n_numbers = 2 if kind == Kind.IN_PLACE else 1
    is_alike = len(numbers) == n_numbers and len(set(numbers)) == 1
    return entry if is_alike and entry.kind == kind and not entry.allowed else None


def build_factory_key(func: Any, args: Args, kwargs: Kwargs) -> Key | None:
    """Return what decides what a factory makes; None if it is not served."""
    dtype = None
    for name, value in kwargs.items():
        if name == "dtype":
            dtype = value
        elif name != "device" or value is not None:
            return None
    sizes = args[0] if len(args) == 1 and type(args[0]) in SEQUENCES else args
    for size in sizes:
        if type(size) is not int:
            return None
    return (func, default_dtype(), dtype, is_deterministic(), *sizes)


def build_writer_key(
    func: Any, geometry: LiveGeometry, args: Args, kwargs: Kwargs
) -> Key | None:
    """Return what decides what an initializer does; None if it is not served."""
    key: list[object] = [func, geometry, default_dtype(), is_deterministic(), *kwargs]
    values = [*args[1:], *kwargs.values()]
    if not args and next(iter(kwargs)) != "tensor":
        return None
    for value in values if args else values[1:]:
        kind = type(value)
        if kind is complex or (kind is float and not value):
            key.append(plain_float(value))
        elif kind in PLAIN:  # nan, too, which equals itself alone
            key += (kind, value)
        else:
            return None
    return tuple(key)
