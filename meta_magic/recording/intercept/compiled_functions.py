"""Replace what ``torch.compile``, ``torch.jit`` and ``torch.export`` do in a cell.

Under a dispatch mode dynamo skips the code that it sees, and skips it for the rest of
the process (fixed after torch 2.13); with ``fullgraph=True`` it fails. With the stance
``force_eager`` it does not look at the code. Importing dynamo takes a second: the flag
is set when somebody imports it.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, Final

import torch

from meta_magic.errors import MetaMagicError
from meta_magic.recording.intercept.higher_order import EagerOperators
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    DispatchKey,
    destroy_library,
    override_kernels,
    run_kernel,
)
from meta_magic.torch_private.dynamo import KernelsWithoutDynamo
from meta_magic.torch_private.modes import (
    TorchDispatchMode,
    WithoutTracing,
    trace_convolution,
)
from meta_magic.torch_private.replaced import (
    ATTENTION_OF_NESTED,
    CHECK_OF_FLEX_ATTENTION,
    CHECK_OF_TRACE,
    DYNAMO,
    JIT_BUILTINS,
    JIT_TRACES,
    MAKE_TENSOR,
)
from meta_magic.torch_private.replacing import (
    Replacements,
    call_with_original,
    find_builtin_of,
)

CONVOLUTION: Final = torch.ops.aten.convolution.default
STRICT: Final = (
    "torch.export.export(strict=True) traces with dynamo, which does not run under a "
    "recording: leave strict out, or export after the cell, when "
    "meta_magic.materialize has made the module real."
)
JAGGED: Final = (
    "scaled_dot_product_attention of nested tensors cannot run on meta: torch chooses "
    "its kernel by the device. Compute it under `with torch.device('cpu'):`, or with "
    "dense tensors (see torch.nested.to_padded_tensor) and a mask."
)


class OnImport(MetaPathFinder):
    """Calls a function as soon as dynamo was imported."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return dynamo's spec, which calls the function as well; None for others."""
        if name != DYNAMO or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: Any) -> None:
                # Dynamo looks at the signatures of factories.
                call_with_original(MAKE_TENSOR, lambda: load(module))
                self._act()

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]  # of this loader alone
        return spec


class EagerStance(Replacements):
    """Context manager in which compiled functions run eagerly and are recorded.

    Three Python functions of torch read what meta cannot answer: they are replaced
    while the cell runs. So is the function by which ``torch.jit`` traces.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stance: Any = None
        self._finder = OnImport(self._force_eager)
        self._kernels = KernelsWithoutDynamo()
        self._operators = EagerOperators()

    def __enter__(self) -> None:
        if DYNAMO in sys.modules:
            self._force_eager()  # first: it may refuse
        else:
            sys.meta_path.insert(0, self._finder)
        self._kernels.__enter__()
        self._operators.__enter__()
        for function, build in REPLACEMENTS:
            if hasattr(*function):  # not in every version of torch
                self.wrap(function, build)
        for function in JIT_TRACES:
            self.wrap(function, build_trace)

    def __exit__(self, *exception: object) -> None:
        self._operators.__exit__(*exception)
        self._kernels.__exit__(*exception)
        self.restore()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if self._stance is not None:
            stance, self._stance = self._stance, None
            stance.__exit__(*exception)

    def _force_eager(self) -> None:
        self._kernels.__exit__()
        self._stance = torch.compiler.set_stance("force_eager")
        self._stance.__enter__()


def accept_meta(validate: Any) -> Any:
    """Return the check of ``flex_attention``, but for meta tensors."""

    def validate_unless_meta(query: torch.Tensor, *others: torch.Tensor) -> None:
        if not query.is_meta:
            validate(query, *others)

    return validate_unless_meta


def refuse_meta(autocast: Any) -> Any:
    """Return the first step of nested attention, which refuses meta tensors."""

    def autocast_unless_meta(query: torch.Tensor, *others: Any) -> Any:
        if query.is_meta:
            raise MetaMagicError(JAGGED)
        return autocast(query, *others)

    return autocast_unless_meta


def build_trace(before: Any) -> Any:
    """Return torch's function for tracing, which records convolutions as on the CPU."""

    def trace(*args: Any, **kwargs: Any) -> Any:
        library = override_kernels({"convolution": convolve})
        try:
            with UntracedMode():  # type: ignore[no-untyped-call]  # torch's has no types
                return before(*args, **kwargs)
        finally:
            destroy_library(library)

    return trace


class Untraced:
    """The methods of the mode below: torch wraps those of a direct subclass."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Call an operator without tracing."""
        with WithoutTracing():
            return func(*args, **(kwargs or {}))


class UntracedMode(Untraced, TorchDispatchMode):
    """Keeps the recording's own questions to tensors out of the graph of ``jit``."""


def convolve(*args: Any) -> Any:
    """Convolve, and record in the tracer by which operator."""
    with WithoutTracing():
        made = run_kernel(CONVOLUTION, DispatchKey.Autograd, args, {})
    trace_convolution(made, args)
    return made


def refuse_strict(export: Any) -> Any:
    """Return ``torch.export.export`` that refuses to trace by dynamo."""

    def export_by_running(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("strict"):
            raise MetaMagicError(STRICT)
        return export(*args, **kwargs)

    return export_by_running


def skip(_: Any) -> Any:
    """Return a function that does nothing, for the check of values in ``torch.jit``."""
    return lambda *_args, **_kwargs: None


REPLACEMENTS: Final = (
    (CHECK_OF_FLEX_ATTENTION, accept_meta),
    (ATTENTION_OF_NESTED, refuse_meta),
    (CHECK_OF_TRACE, skip),
    (JIT_BUILTINS, find_builtin_of),
    ((torch.export, "export"), refuse_strict),
)
