"""Serve calls of torch's own layers whole, where their like was seen.

A layer such as ``nn.Linear`` calls one function of torch. Where that is known, neither
its ``forward`` need run nor torch's way to it, which takes as long as all else.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.templates import Operands, Template
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    are_hooks_ours,
    has_hooks,
    parameters_of,
)
from meta_magic.torch_private.replacing import Replacements

__all__ = ["LAYERS", "LeafModules"]

Given = tuple[tuple[Any, ...], dict[str, Any] | None]
"""What a function is called with, by position and by name."""


class Layer(NamedTuple):
    """What a class of torch's own modules calls.

    Attributes:
        kind: The class.
        function: The function.
        read: Returns what that is given, of a module and what that is called with.
        forward: The method that does so.
    """

    kind: type[nn.Module]
    function: Any
    read: Callable[[Any, Tensor], Given]
    forward: Any


def read_linear(module: nn.Module, x: Tensor) -> Given:
    """Return what ``nn.Linear`` gives."""
    own = parameters_of(module)
    return (x, own["weight"], own["bias"]), None


def read_norm(module: Any, x: Tensor) -> Given:
    """Return what ``nn.LayerNorm`` gives."""
    own = parameters_of(module)
    named = {"weight": own["weight"], "bias": own["bias"], "eps": module.eps}
    return (x, module.normalized_shape), named


def read_dropout(module: Any, x: Tensor) -> Given:
    """Return what ``nn.Dropout`` gives."""
    named = {"p": module.p, "training": module.training, "inplace": module.inplace}
    return (x,), named


def read_inplace(module: Any, x: Tensor) -> Given:
    """Return what ``nn.ReLU`` and ``nn.SiLU`` give."""
    return (x,), {"inplace": module.inplace}


def read_gelu(module: Any, x: Tensor) -> Given:
    """Return what ``nn.GELU`` gives."""
    return (x,), {"approximate": module.approximate}


LAYERS: Final = (
    Layer(nn.Linear, functional.linear, read_linear, nn.Linear.forward),
    Layer(nn.LayerNorm, functional.layer_norm, read_norm, nn.LayerNorm.forward),
    Layer(nn.Dropout, functional.dropout, read_dropout, nn.Dropout.forward),
    Layer(nn.ReLU, functional.relu, read_inplace, nn.ReLU.forward),
    Layer(nn.SiLU, functional.silu, read_inplace, nn.SiLU.forward),
    Layer(nn.GELU, functional.gelu, read_gelu, nn.GELU.forward),
)

leaves_by_thread: "dict[int, LeafModules]" = {}
"""Who serves on each thread that records."""


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
        self._outer: LeafModules | None = None

    def __enter__(self) -> None:
        thread = threading.get_ident()
        self._outer = leaves_by_thread.get(thread)
        leaves_by_thread[thread] = self
        for layer, call in CALLS:
            if vars(layer.kind).get("__call__", call) is call:  # nobody has another
                self.replace_all(layer.kind, {"__call__": call})

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        thread = threading.get_ident()
        if self._outer is None:
            leaves_by_thread.pop(thread, None)
        else:
            leaves_by_thread[thread] = self._outer

    def serve(self, layer: Layer, module: nn.Module, x: Any) -> Tensor | None:
        """Return what a call returns whose like was seen before; None of others."""
        calls = self._calls
        if (
            not calls.word
            or calls.is_in_backward
            or type(module) is not layer.kind
            or type(x) is not Tensor
            or layer.kind.forward is not layer.forward
            or has_hooks(module)
            or not are_hooks_ours()
            or not self._functions.sees_all()
        ):
            return None
        with DisableTorchFunction():
            return self._serve(layer, module, x)

    def _serve(self, layer: Layer, module: nn.Module, x: Tensor) -> Tensor | None:
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
        registry = self._functions.registry
        site = calls.begin(number, sys._getframe(4))
        before = places.running
        places.running = [function, None, places.locate_leaf(function, site), ()]
        try:
            returned = x = operands.tensors[0]
            if template.is_same:
                number, _, geometry = registry.read(x)
            else:
                returned = self._rows.append_function(template, operands)
                number, geometry = operands.numbers[0], operands.seens[0][2]
        finally:
            places.running = before
        taken = made = number << 1 | x.requires_grad, geometry
        if returned is not x:
            number, _, geometry = registry.read_again(returned)
            made = number << 1, geometry
        calls.end_served(taken, made)
        return returned


def build_call(layer: Layer) -> Callable[..., Any]:
    """Return what stands for ``__call__`` of a layer while any recording runs."""

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        leaves = leaves_by_thread.get(threading.get_ident())
        if leaves is not None and len(args) == 1 and not kwargs:
            returned = leaves.serve(layer, module, args[0])
            if returned is not None:
                return returned
        return nn.Module.__call__(module, *args, **kwargs)

    return __call__


CALLS: Final = tuple((layer, build_call(layer)) for layer in LAYERS)
"""The layers, and what stands for their ``__call__``: the same in all recordings."""
