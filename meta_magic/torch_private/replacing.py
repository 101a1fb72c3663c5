"""Replace functions of torch while recordings run, also if these overlap.

Recordings of two threads may end in any order; the last one restores what was there
before the first. Read ``Replacements`` first.

What they replace in torch's own modules is listed here, each a pair of the module, or
class, and the name in it. Each comment says what happens without the replacement.

Plain torch imports dynamo, which takes half a second, at the first call of some kernels
that are written in Python: :class:`KernelsWithoutDynamo` keeps it from that.
"""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache, wraps
from inspect import isfunction
from itertools import chain
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias

import torch
from torch import _compile, _meta_registrations, _refs, _tensor_str
from torch._decomp import global_decomposition_table
from torch._refs.nn import functional
from torch.amp.autocast_mode import autocast as autocast_class
from torch.amp.grad_scaler import GradScaler
from torch.nested._internal import sdpa
from torch.nn import parameter
from torch.optim import optimizer
from torch.utils import _foreach_utils, checkpoint

from meta_magic.torch_private.dispatcher import destroy_library, override_kernels

Replaceable: TypeAlias = tuple[ModuleType | type, str]

# Code that runs in a cell for the first time stays uncompiled for ever.
DYNAMO: Final = "torch._dynamo"

# Meta kernels that differ by device behave as on CUDA.
DEVICE_OF_META_KERNELS: Final = (_meta_registrations, "device_hint")

# Autocast does nothing on meta.
AUTOCAST_INIT: Final = (autocast_class, "__init__")
AUTOCAST_ENTRY: Final = (autocast_class, "__enter__")
AUTOCAST_EXIT: Final = (autocast_class, "__exit__")

# Recomputed activations are cast otherwise, and drawn from another generator state.
DEVICE_OF_CHECKPOINT: Final = (checkpoint, "_infer_device_type")

# From torch 2.13 on: the loss of a linear layer is computed in chunks, and in a dtype,
# that no device uses.
DEVICE_OF_CHUNKED_LOSSES: Final = tuple(
    (module.LinearCrossEntropyOptions, "_adjust")
    for name, module in list(sys.modules.items())
    if name == "torch.nn.modules.linear_cross_entropy_options"
)

# Optimizers run the operators of meta, and not of a device.
FOREACH_DEVICES: Final = (_foreach_utils, "_get_foreach_kernels_supported_devices")
FOREACH_DEVICES_OF_OPTIMIZERS: Final = (
    optimizer,
    "_get_foreach_kernels_supported_devices",
)
FUSED_DEVICES: Final = (optimizer, "_get_fused_kernels_supported_devices")

# In each optimizer's module, which imports it by name: ``capturable=True`` is refused.
CAPTURABLE_DEVICES: Final = tuple(
    (module, "_get_capturable_supported_devices")
    for name, module in list(sys.modules.items())
    if name.startswith("torch.optim.")
    if hasattr(module, "_get_capturable_supported_devices")
)

# A lazy module that was made before the cell cannot be called in it.
FIRST_SIZES: Final = (parameter.UninitializedTensorMixin, "materialize")  # type: ignore[attr-defined]  # torch's stub lacks it

# Attention of nested tensors fails with a message that does not help.
ATTENTION_OF_NESTED: Final = (sdpa, "_autocast")

# ``torch.jit.trace`` compares results by value, which meta has none of.
CHECK_OF_TRACE: Final = (torch.jit._trace, "_check_trace")

# A new parameter, or tensor of a subclass, at the address of a tensor that is gone is
# mistaken for that tensor.
MAKE_SUBCLASS: Final = ((torch.Tensor, "_make_subclass"), (torch.Tensor, "as_subclass"))

# No tensor of a user's own subclass is made from another tensor.
MAKE_TENSOR: Final = (torch.Tensor, "__new__")

# In a cell that drew, the bytes of a generator's state differ from the CPU's, and a
# state that was loaded from a file cannot be set.
GENERATOR: Final = torch._C.Generator

# Tensors on meta are shown without values, and with no device but meta.
TEXT_OF_TENSOR: Final = (_tensor_str, "_str")

# A real module that a cell moves or casts stays on meta when the cell has ended.
APPLY_OF_MODULES: Final = (torch.nn.Module, "_apply")

# Attention cannot be scripted in a cell, as it calls a replaced builtin.
JIT_BUILTINS: Final = (torch.jit._builtins, "_find_builtin")

# ``torch.jit.trace`` takes the result of a convolution for a constant.
JIT_TRACES: Final = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
)

# Checkpointing does not restore the generator of a planned GPU, and draws another
# dropout when it recomputes.
CUDA_IS_THERE: Final = (torch.cuda, "_initialized")

# Scripts that look for bfloat16 ask for the version of CUDA, and plan half precision.
CUDA_VERSION: Final = (torch.version, "cuda")

# Hooks and custom functions make real tensors, and cannot read values.
RUN_BACKWARD: Final = (torch.autograd, "_engine_run_backward")

# Each step of a ``GradScaler`` replays the whole program before it.
STEP_OF_SCALER: Final = (GradScaler, "_maybe_opt_step")

# The storage of a meta tensor cannot be read.
STORAGE_READERS: Final = (
    (torch.storage._StorageBase, "__iter__"),
    (torch.UntypedStorage, "__getitem__"),
    (torch.TypedStorage, "__iter__"),
    (torch.TypedStorage, "_getitem"),
)


def enable_autocast(region: autocast_class, *, is_enabled: bool) -> None:
    """Turn on a region of autocast that torch turned off because it saw no CUDA.

    Without it autocast of CUDA does nothing on a machine without a GPU.
    """
    region._enabled = is_enabled


# What ``threading.setprofile`` sets: it stays set when recordings of two threads end in
# another order than they began.
PROFILE_OF_THREADS: Final = (threading, "_profile_hook")

Methods: TypeAlias = Mapping[str, Callable[..., Any]]
"""By name. Each takes the function that it replaces, then its arguments."""


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a module or class, also of a class that C made immutable."""
    try:
        setattr(owner, name, value)
    except TypeError:
        (attributes,) = gc.get_referents(vars(owner))
        attributes[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class Swapped:
    """Attributes of a module or class with other values while any recording runs."""

    def __init__(self, owner: Any, values: Mapping[str, Any]) -> None:
        self._owner = owner
        self._values = values
        self._held: Mapping[str, Any] = {}
        self._n_users = 0

    def enter(self) -> None:
        """Set the values, for the first recording."""
        if not self._n_users:
            there = vars(self._owner)  # not getattr, which would bind a static method
            self._held = {n: there[n] for n in self._values if n in there}
            for name, value in self._values.items():
                set_attribute(self._owner, name, value)
        self._n_users += 1

    def leave(self) -> None:
        """Restore the values, after the last recording."""
        self._n_users -= 1
        if not self._n_users:
            there = vars(self._owner)
            for name, value in self._values.items():
                if there.get(name) is not value:
                    continue
                if name in self._held:
                    set_attribute(self._owner, name, self._held[name])
                else:  # inherited
                    delattr(self._owner, name)


class ThreadReplacements(Swapped):
    """Functions of a module or class that are replaced on some threads only.

    They are built once and kept: building them for each recording would slow down
    each cell, and a cell may have imported one by name.
    """

    def __init__(self, owner: Any, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._of_thread: dict[int, Methods] = {}
        super().__init__(owner, {name: self._build(name) for name in plain})

    def _build(self, name: str) -> Callable[..., Any]:
        plain, find = self._plain[name], self._of_thread.get

        @wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            methods = find(threading.get_ident())
            if methods is None:
                return plain(*args, **kwargs)
            return methods[name](plain, *args, **kwargs)

        made: Callable[..., Any] = mark_replaced(plain, function)
        return made

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield each function with what replaces it."""
        return zip(self._plain.values(), self._values.values(), strict=True)

    def fit(self, there: Mapping[str, Any]) -> bool:
        """Whether they replace what is there now, and this thread does not use them."""
        known = self._values if self._of_thread else self._plain
        return there == known and threading.get_ident() not in self._of_thread

    def enter_here(self, methods: Methods) -> None:
        """Use methods on this thread."""
        self.enter()
        self._of_thread[threading.get_ident()] = methods

    def leave(self) -> None:
        """Use the plain functions on this thread again."""
        del self._of_thread[threading.get_ident()]
        super().leave()


def mark_replaced(plain: Any, function: Any) -> Any:
    """Have ``torch.jit.script`` compile the original of a function that replaces it.

    Without it the first ``import torch.distributed.optim`` fails in a cell: torch
    scripts its optimizers, which call replaced functions.
    """
    if isfunction(function):
        vars(function).update(__prepare_scriptable__=lambda: plain, replaced=plain)
    return function


def find_builtin(find: Callable[[Any], Any], function: Any) -> Any:
    """Return the operator of a function's original, as ``torch.jit`` finds it."""
    return find(getattr(function, "replaced", function))


# The values of each replaced attribute: the original first, the newest last.
stacks: dict[tuple[int, str], list[Any]] = {}
by_thread: dict[tuple[Any, ...], ThreadReplacements] = {}
swapped: dict[tuple[Any, ...], Swapped] = {}
lock = threading.RLock()


class Replacements:
    """The attributes and kernels that one recording replaced, and restores.

    A subclass defines ``__enter__``, in which it replaces them.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any]] = []
        self._entered: list[Swapped] = []
        self._libraries: list[Any] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class."""
        with lock:
            stack = stacks.get((id(owner), name))
            if stack is None:  # vars: getattr would bind a static method
                held = vars(owner).get(name, getattr(owner, name))
                stack = stacks[id(owner), name] = [held]
            stack.append(value)
            self._made.append((owner, name, value))
            setattr(owner, name, value)

    def replace_here(self, owner: Any, methods: Methods) -> None:
        """Replace functions of a module or class on this thread."""
        with lock:
            there = {name: getattr(owner, name) for name in methods}
            key = id(owner), *methods
            found = by_thread.get(key)
            if found is None or not found.fit(there):
                found = by_thread[key] = ThreadReplacements(owner, there)
            found.enter_here(methods)
            self._entered.append(found)

    def replace_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Set attributes of a module or class that are the same in all recordings."""
        with lock:
            key = id(owner), *values
            found = swapped.setdefault(key, Swapped(owner, values))
            found.enter()
            self._entered.append(found)

    def override_kernels(self, *kernels: Methods) -> None:
        """Make operators run other kernels on meta: above autograd, and below it."""
        self._libraries.append(override_kernels(*kernels))

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore all, except what somebody else replaced meanwhile."""
        while self._libraries:
            destroy_library(self._libraries.pop())
        with lock:
            while self._entered:
                self._entered.pop().leave()
            while self._made:
                owner, name, value = self._made.pop()
                stack = stacks[id(owner), name]
                stack.remove(value)
                # vars: getattr would bind a method
                if vars(owner).get(name) is value:
                    setattr(owner, name, stack[-1])
                if len(stack) == 1:
                    del stacks[id(owner), name]


class ImportedNames(Replacements):
    """Replaces what a module imported by name before the recording.

    Without it ``to_dlpack(x)`` fails in a cell after ``from torch.utils.dlpack import
    to_dlpack`` in a plain one. Enter it after the replacements.
    """

    def __init__(self, module: ModuleType | None) -> None:
        super().__init__()
        self._names = {} if module is None else vars(module)
        self._module = module

    def __enter__(self) -> None:
        pairs = chain.from_iterable(found.pairs() for found in by_thread.values())
        replaced = {id(plain): value for plain, value in pairs}
        names = self._names.copy().items()
        for name, key in [(n, id(v)) for n, v in names if id(v) in replaced]:
            self.replace(self._module, name, replaced[key])


def call_with_original(replaceable: Replaceable, func: Callable[[], object]) -> None:
    """Call a function while an attribute of torch has its original value."""
    owner, name = replaceable
    with lock:
        stack = stacks.get((id(owner), name))
        before = getattr(owner, name)
        if stack is not None:
            setattr(owner, name, stack[0])
        try:
            func()
        finally:
            if stack is not None:
                setattr(owner, name, before)


# The attribute under which ``torch._compile`` keeps dynamo's version of a function.
ANSWER: Final = "__dynamo_disable"


class KernelsWithoutDynamo:
    """Context manager in which torch's kernels in Python do not import dynamo.

    At its first call such a kernel asks dynamo for a version of itself that dynamo does
    not compile. While dynamo is not imported, that version is the kernel itself.
    """

    def __init__(self) -> None:
        self._answered: list[tuple[dict[str, Any], FunctionType]] = []

    def __enter__(self) -> None:
        if DYNAMO in sys.modules:
            return
        # A recording around this one has set the others already.
        self._answered = [pair for pair in list_disabled() if ANSWER not in pair[0]]
        for attributes, function in self._answered:
            attributes[ANSWER] = function

    def __exit__(self, *_: object) -> None:
        """Make kernels ask dynamo again; also called once dynamo is imported."""
        for attributes, function in self._answered:
            if attributes.get(ANSWER) is function:
                del attributes[ANSWER]
        self._answered = []


@cache
def list_disabled() -> tuple[tuple[dict[str, Any], FunctionType], ...]:
    """Return the attributes of each function that asks dynamo, and its kernel."""
    codes = _compile._disable_dynamo.__code__.co_consts
    asking = [c for c in codes if isinstance(c, CodeType) and c.co_name == "inner"]
    todo = [*vars(_refs).values(), *vars(functional).values()]
    for table in global_decomposition_table.values():
        todo += table.values()
    seen: dict[FunctionType, None] = {}
    while todo:
        function = todo.pop()
        if isinstance(function, FunctionType) and function not in seen:
            seen[function] = None
            todo += [held for _, held in list_enclosed(function)]
    found = (dict(list_enclosed(f))["fn"] for f in seen if f.__code__ in asking)
    return tuple((vars(function), function) for function in found)


def list_enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values in a function's closure."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it was never assigned
            continue


def leave_dynamo_out() -> None:
    """Give torch an empty dynamo for good, if dynamo is not imported yet.

    For child processes that only try whether code runs: the import takes a second and
    writes files, which no trial may.
    """
    if DYNAMO not in sys.modules:
        empty: Any = ModuleType(DYNAMO)
        empty.disable = lambda function, *_, **__: function
        empty.set_stance = lambda *_, **__: nullcontext()
        empty.compiled_autograd = SimpleNamespace(_disable=nullcontext)  # of func.grad
        sys.modules[DYNAMO] = torch._dynamo = empty


def import_dynamo() -> None:
    """Import dynamo, as ``torch.distributed.pipelining`` does; it takes a second."""
    import torch._dynamo  # noqa: F401, PLC0415
