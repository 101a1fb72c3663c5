"""Serve calls of torch's own layers whole, where their like was seen.

A layer such as ``nn.Linear`` calls one function of torch. Where that is known, neither
its ``forward`` need run nor torch's way to it, which takes as long as all else. Else
one more frame stands above the layer's in a traceback.
"""

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.intercept.layers import LAYERS, Layer
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.templates import Operands, Template
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    are_hooks_ours,
    is_as_made,
    is_changed,
    is_torch_calling,
)
from meta_magic.torch_private.replacing import Replacements

__all__ = ["LeafModules"]

is_grad_enabled = torch.is_grad_enabled
functions_now: Final = vars(functional)
leaves_by_thread: "dict[int, list[LeafModules]]" = {}
"""Who serves on each thread that records, the newest last."""


class LeafModules(Replacements):
    """Serves whole calls of layers within the call of a module.

    Args:
        functions: Knows what functions do, and whether it sees all of them.
        calls: Where the calls of modules are written.
        rows: Where operators are.
    """

    def __init__(
        self, functions: FunctionMode, calls: ModuleCallRecorder, rows: RowWriter
    ) -> None:
        super().__init__()
        self._functions = functions
        self._calls = calls
        self._rows = rows
        self._thread = 0
        self._is_watched = False
        # Of each class: what is put into it later is not to be passed over.
        self._n_names: dict[type[nn.Module], int] = {}

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        if self._is_watched or not (self._functions.sees_all() and is_torch_calling()):
            return
        leaves_by_thread.setdefault(self._thread, []).append(self)
        for layer, call in CALLS:
            kind = layer.kind
            if is_as_made(kind) and vars(kind).get("__call__", call) is call:
                self.replace_all(kind, {"__call__": call})
                self._n_names[kind] = len(vars(kind))

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._stop()

    def look_out(self, _: SharedMemory) -> None:
        """Serve no more: arrays share memory, whose writes are operators, too."""
        self._is_watched = True
        self._stop()

    def _stop(self) -> None:
        serving = leaves_by_thread.get(self._thread, [])
        if self in serving:
            serving.remove(self)
        if not serving:
            leaves_by_thread.pop(self._thread, None)

    def serve(self, layer: Layer, module: nn.Module, x: Any) -> Tensor | None:
        """Return what a call returns whose like was seen before; None of others."""
        calls = self._calls
        if (
            not calls.word
            or calls.is_in_backward
            or type(module) is not layer.kind
            or type(x) is not Tensor
            or layer.kind.forward is not layer.forward
            or functions_now.get(layer.name) is not layer.function
            or len(vars(layer.kind)) != self._n_names.get(layer.kind)
            or is_changed(module)
            or not are_hooks_ours()
            or not self._functions.sees_all()
        ):
            return None
        with DisableTorchFunction():
            return self._serve(layer, module, x)

    def _serve(self, layer: Layer, module: nn.Module, x: Tensor) -> Tensor | None:
        if is_grad_enabled() and x.requires_grad:
            return None  # no call is served whose gradient is recorded
        number = self._calls.number_met(module)
        try:
            args, kwargs = layer.read(module, x)
        except (AttributeError, KeyError):  # the module is not as torch makes it
            return None
        operands = Operands()
        template = self._functions.find(layer.function, args, kwargs, operands)
        if number is None or template is None or template.is_native:
            return None
        return self._write(layer.function, number, template, operands)

    @unbroken
    def _write(
        self, function: Any, number: int, template: Template, operands: Operands
    ) -> Tensor:
        """Write the call of a module and its operators, and return what it returns."""
        calls, places = self._calls, self._functions.places
        registry, outer = self._functions.registry, calls.word
        site = calls.begin(number, sys._getframe(4))
        returned = x = operands.tensors[0]
        before = places.running
        try:
            if template.is_same:  # by no operator, which would have a place
                read, _, geometry = registry.read(x)
            else:
                located = places.locate_leaf(function, site)
                places.running = [function, None, located, ()]
                returned = self._rows.append_function(template, operands)
                read, geometry = operands.numbers[0], operands.seens[0][2]
        except BaseException:  # too deep a recursion, say
            calls.word = outer
            raise
        finally:
            places.running = before
        taken = given = read << 1 | x.requires_grad, geometry
        if returned is not x:
            made, _, geometry = registry.read_again(returned)
            given = made << 1, geometry
        calls.end_served(taken, given)
        return returned


def build_call(layer: Layer) -> Callable[..., Any]:
    """Return what stands for ``__call__`` of a layer while any recording runs."""
    kind = layer.kind

    @wraps(nn.Module.__call__)
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        serving = leaves_by_thread.get(threading.get_ident())
        if serving and len(args) == 1 and not kwargs:
            returned = serving[-1].serve(layer, self, args[0])
            if returned is not None:
                return returned
        if not isinstance(self, kind):
            return nn.Module.__call__(self, *args, **kwargs)
        above: Any = super(kind, self)  # that of another base, perhaps
        return above.__call__(*args, **kwargs)

    return __call__


CALLS: Final = tuple((layer, build_call(layer)) for layer in LAYERS)
"""The layers, and what stands for their ``__call__``: the same in all recordings."""
