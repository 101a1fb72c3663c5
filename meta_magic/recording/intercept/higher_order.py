"""Record the operators inside of higher-order operators, such as ``torch.cond``.

One row for ``torch.cond`` would hide the operators of its branches, and no replay could
run it. Inside a transform of ``torch.func`` a new tensor is made below the transform,
which then wraps it, as on the CPU.

``torch.compile``: under a dispatch mode dynamo skips code, for the rest of the process
(fixed after torch 2.13), or fails with ``fullgraph=True``. With the stance
``force_eager`` it does not look at the code. Importing dynamo takes a second: the flag
is set when somebody imports it.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.errors import MetaMagicError
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    ASKS_MODE,
    DispatchKey,
    HigherOrderOperator,
    destroy_library,
    find_schema,
    forget_kernel,
    higher_order_operators,
    override_kernels,
    run_kernel,
)
from meta_magic.torch_private.modes import (
    BelowTransforms,
    DisableTorchDispatch,
    DisableTorchFunction,
    TorchDispatchMode,
    WithoutTracing,
    dispatch_mode_stack,
    function_mode_stack,
    functorch_interpreter,
    get_unwrapped,
    is_batched,
    is_functorch_wrapped_tensor,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    trace_convolution,
)
from meta_magic.torch_private.replacing import (
    ATTENTION_OF_NESTED,
    CHECK_OF_TRACE,
    DYNAMO,
    JIT_BUILTINS,
    JIT_TRACES,
    MAKE_TENSOR,
    KernelsWithoutDynamo,
    Replaceable,
    Replacements,
    call_with_original,
    find_builtin,
)

KERNEL: Final = DispatchKey.CompositeExplicitAutograd
ABOVE: Final = DispatchKey.AutogradMeta
NUMBERS: Final = frozenset({bool, int, float})


class Inside:
    """The part of the dispatch mode that handles higher-order operators."""

    functions: Any = None
    special: Any


def has_inside(func: Any, args: Args) -> bool:
    """Whether an operator only runs others, or has a constant of TorchScript."""
    return isinstance(func, HigherOrderOperator) or is_on_constant(func, args)


def is_on_constant(func: Any, args: Args) -> bool:
    """Whether there is a number where the schema wants a tensor.

    TorchScript makes 0-dimensional tensors of numbers. Torch passes them to a mode as
    numbers, and does not accept these numbers in return.
    """
    schema = find_schema(func)
    if schema is None or not args or type(args[0]) not in NUMBERS:
        return False
    has_tensors = any(isinstance(value, Tensor) for value in args)
    return isinstance(schema.arguments[0].type, torch.TensorType) and not has_tensors


def as_tensors(func: Any, args: Args) -> Args:
    """Return arguments with a tensor for each number where the schema wants one."""
    schema = find_schema(func)
    declared = () if schema is None else schema.arguments
    with DisableTorchFunction():
        return tuple(
            torch.tensor(value, device="cpu")
            if type(value) in NUMBERS and isinstance(argument.type, torch.TensorType)
            else value
            for value, argument in zip(args, declared, strict=False)
        )


def run_inside(mode: Inside, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator so that ``mode`` sees the operators that it calls."""
    if is_on_constant(func, args):
        return run_under(mode, partial(func, *as_tensors(func, args), **kwargs))
    kernel = func.py_kernels.get(KERNEL)
    if kernel is None:
        return NotImplemented
    call = partial(unaware_of_modes(kernel), *args, **kwargs)
    return run_under(mode, partial(run_as_called, mode, func, call))


def run_under(mode: Inside, call: Callable[[], Any]) -> Any:
    """Call under the mode, which torch removes while it runs."""
    push_dispatch_mode(mode)
    try:
        return call()
    finally:
        pop_dispatch_mode()


def run_as_called(mode: Inside, func: Any, call: Callable[[], Any]) -> Any:
    """Call with the function mode on, which torch removes for calls from inside."""
    mode.special.begin(f"higher_order.{func}")
    if mode.functions in function_mode_stack():
        return call()
    push_function_mode(mode.functions)
    try:
        return call()
    finally:
        pop_function_mode()


class EagerOperators:
    """Context manager in which higher-order operators run like Python functions."""

    n_entered = 0

    def __enter__(self) -> None:
        EagerOperators.n_entered += 1
        for operator in list(higher_order_operators.values()):
            kernels = operator.py_kernels
            if KERNEL in kernels and DispatchKey.Autograd in kernels:
                self._put(operator, build_eager(operator))

    def __exit__(self, *_: object) -> None:
        EagerOperators.n_entered -= 1
        if EagerOperators.n_entered:  # an outer recording needs them
            return
        for operator in list(higher_order_operators.values()):
            if isinstance(operator.py_kernels.get(ABOVE), EagerKernel):
                self._put(operator, None)

    def _put(self, operator: Any, kernel: Any) -> None:
        operator.py_kernels.pop(ABOVE, None)
        forget_kernel(operator, ABOVE)
        if kernel is not None:
            operator.py_kernels[ABOVE] = kernel


class EagerKernel:
    """A kernel for meta tensors that calls its argument, above autograd."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator
        self._kernel = unaware_of_modes(operator.py_kernels[KERNEL])
        self._differentiate = operator.py_kernels[DispatchKey.Autograd]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; let another mode trace it."""
        modes: list[Any] = dispatch_mode_stack()
        if len(modes) != 1 or not isinstance(modes[0], Inside):
            return self._differentiate(*args, **kwargs)
        call = partial(self._kernel, *args, **kwargs)
        return run_as_called(modes[0], self._operator, call)


build_eager = cache(EagerKernel)  # return the kernel of an operator, the same each time


def unaware_of_modes(kernel: Any) -> Any:
    """Return a kernel that may run under a mode, which some kernels refuse."""
    code = kernel.__code__ if isinstance(kernel, FunctionType) else None
    if code is None or ASKS_MODE not in code.co_names:
        return kernel
    names = {**kernel.__globals__, ASKS_MODE: lambda: None}
    bound = kernel.__name__, kernel.__defaults__, kernel.__closure__
    return FunctionType(code, names, *bound)


LIFT_FRESH: Final = torch.ops.aten.lift_fresh.default


def make_below(make: Callable[..., Any], args: Args) -> Any:
    """Make a tensor below the running transforms, and let them wrap it."""
    if functorch_interpreter() is None:
        return make(*args)
    below = [*map(unwrap, args)]
    with BelowTransforms():
        made = make(*below)
    with DisableTorchFunction(), DisableTorchDispatch():  # as torch does, unrecorded
        return LIFT_FRESH(made)


def unwrap(value: Any) -> Any:
    """Return the tensor inside of the wrappers of transforms."""
    if isinstance(value, (list, tuple)):
        return type(value)([unwrap_number(item) for item in value])
    while isinstance(value, Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value


def unwrap_number(value: Any) -> Any:
    """Return the unwrapped tensor for a number, also in nested lists."""
    layer = value
    while isinstance(layer, Tensor) and is_functorch_wrapped_tensor(layer):
        if is_batched(layer):
            value.item()  # which torch refuses
        layer = get_unwrapped(layer)
    return unwrap(layer)


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
        for (owner, name), method in REPLACEMENTS:
            if hasattr(owner, name):  # not in every version of torch
                self.replace_here(owner, {name: method})

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


def refuse_meta(autocast: Any, query: torch.Tensor, *others: Any) -> Any:
    """Take the first step of nested attention; refuse meta tensors."""
    if query.is_meta:
        raise MetaMagicError(JAGGED)
    return autocast(query, *others)


def trace(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Trace as ``torch.jit`` does; record convolutions as on the CPU."""
    library = override_kernels({"convolution": convolve})
    try:
        with UntracedMode():
            return plain(*args, **kwargs)
    finally:
        destroy_library(library)


class UntracedMode(TorchDispatchMode):
    """Keeps the recording's own questions to tensors out of the graph of ``jit``."""

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


def convolve(*args: Any) -> Any:
    """Convolve, and record in the tracer by which operator."""
    with WithoutTracing():
        made = run_kernel(CONVOLUTION, DispatchKey.Autograd, args, {})
    trace_convolution(made, args)
    return made


def refuse_strict(export: Any, *args: Any, **kwargs: Any) -> Any:
    """Export a model; refuse to trace it by dynamo."""
    if kwargs.get("strict"):
        raise MetaMagicError(STRICT)
    return export(*args, **kwargs)


REPLACEMENTS: Final[tuple[tuple[Replaceable, Callable[..., Any]], ...]] = (
    (ATTENTION_OF_NESTED, refuse_meta),
    (CHECK_OF_TRACE, lambda *_args, **_kwargs: None),  # it compares values
    (JIT_BUILTINS, find_builtin),
    *((function, trace) for function in JIT_TRACES),
    ((torch.export, "export"), refuse_strict),
)
