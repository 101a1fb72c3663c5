"""Answer with the device that the code names when a cell asks a tensor for its device.

All tensors of a cell are on meta. ``if x.is_cuda:`` or ``x.device`` must answer as on
the planned device, else the cell takes another branch than the real program. Functions
of torch that need the true answer get it: the frame that asks decides.

``nn.init.xavier_uniform_(w)`` asks ``w.is_meta`` and does nothing if it is: Materialize
would leave uninitialized memory. The question is answered by recording the whole
initializer as one operator.

Functions of libraries that look at a device are listed by the name of their code: the
library need not be imported, and copies of its code are known, too. To support another
one, add its functions to these tables, and a test.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, distributed
from torch.autograd.graph import increment_version
from torch.nn import functional, init
from torch.nn.attention import flex_attention
from torch.nn.modules import activation, transformer

from meta_magic.recording.identities.call_sites import (
    OPTIM,
    PACKAGE,
    TORCH,
    Running,
    is_library,
)
from meta_magic.recording.identities.device_plan import has_carried_placement
from meta_magic.recording.identities.storages import NamedDevices
from meta_magic.recording.intercept.real_tensors.capturable import is_capturable
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import parse_schema
from meta_magic.torch_private.distributed import PLAIN, local_of
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    TorchDispatchMode,
)
from meta_magic.torch_private.module_internals import (
    IS_ASSIGNING,
    LOADED,
    LOADING,
    PREFIX,
    initialize_truncated,
)
from meta_magic.torch_private.tensor_internals import (
    CHECKPOINTING,
    FAKING,
    PICKLING,
    MetaConverter,
    set_lazy_bits,
    take_plain_data,
)
from meta_magic.trace.signature import CPU, META

Adopt: TypeAlias = Callable[[Args, Kwargs], Tensor | None]
"""Takes the arguments of a function of torch; returns a real tensor, to be put on the
device of the cell, or None to call torch's own."""


MAKE_REAL: Final = frozenset({"get_torch_context_manager_or_global_device"})
"""Functions in which factories make real tensors, because they check the device of the
result: that of transformers skips all initialization on meta."""

REPORTED_DEVICE: Final = frozenset({"grouped_mm_experts_forward"})
"""Functions in which ``x.device`` is the device whose kernels are recorded: that of
transformers chooses a dtype for its kernels by it."""

INITIALIZE: Final = ("_init_weights",)
"""Methods by which models of transformers initialize a submodule: without them
``init="reset"`` would report parameters as uninitialized."""

WRITERS: Final = ("_flatten_as_ptr", "_flatten")
"""Functions of safetensors that take a dictionary of tensors and lay it out for a file.
The first is of safetensors 0.8 and later."""


def adopt_storage(args: Args, kwargs: Kwargs) -> Tensor | None:
    """Return the tensor of a storage; None if ``asarray`` was given something else."""
    if not args or type(args[0]) is not torch.UntypedStorage:
        return None
    with DisableTorchDispatch():
        return torch.asarray(args[0], **{**kwargs, "device": args[0].device})


@cache
def find_writers() -> tuple[Any, Sequence[str], Sequence[str]] | None:
    """Return the functions that pass addresses of tensors to Rust code of safetensors.

    The module, the names of those that lay out tensors for a file, and of those that
    take what was laid out, and a path if they write a file; None without the module. It
    is imported here (1 ms): a cell may be the first to do so, and others import
    ``save_file`` by name.
    """
    try:
        import safetensors.torch as module  # noqa: PLC0415  if it is there at all
    except ImportError:
        return None
    lay_out = [name for name in WRITERS if hasattr(module, name)]
    return module, lay_out, ("serialize", "serialize_file")


ADOPTED: Final[dict[Any, Adopt]] = {torch.asarray: adopt_storage}
"""By torch's function: makes a tensor of memory that a library made."""


IS_META: Final = torch.Tensor.is_meta
"""The getter of the attribute that initializers ask for."""

SENDING: Final = str(TORCH / "distributed" / "tensor" / "_collective_utils.py")
"""The file by which ``distribute_tensor`` sends tensors."""

UNLOADABLE: Final = (
    "load_state_dict cannot copy tensors on meta, which have no data, into a real "
    "module (see meta_magic.materialize for the module that they are from)"
)

LEAST_INSIDE: Final = 0.3
"""Share of the distribution within the bounds up to which ``trunc_normal_`` draws in
another way."""

HALF: Final = 0.5


class Initializer:
    """An initializer, recorded like an operator."""

    def __init__(self, func: Any, arguments: str, count: Callable[..., int]) -> None:
        self._count = count
        self._name = f"nn.init.{func.__name__.removeprefix(PREFIX)}"
        schema = f"init::_(Tensor(a!) tensor{arguments})->Tensor(a!)"
        self._schema = parse_schema(schema)
        self.function = func
        is_random = any(a.name == "generator" for a in self._schema.arguments)
        self.tags = {torch.Tag.nondeterministic_seeded} if is_random else set()

    def __call__(self, tensor: Tensor, *_: object, **__: object) -> Tensor:
        """Do what the initializer does on meta."""
        return tensor

    def __str__(self) -> str:
        return self._name

    def count_writes(self, arguments: list[Any]) -> None:
        """Add the writes of a real run to the version of a tensor on meta."""
        increment_version(arguments[:1] * self._count(*arguments))

    def read_arguments(self, frame: FrameType) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the initializer's call that runs in ``frame``."""
        values = {name: plain(value) for name, value in frame.f_locals.items()}
        arguments = self._schema.arguments
        return (
            [values[a.name] for a in arguments if not a.kwarg_only],
            {a.name: values[a.name] for a in arguments if a.kwarg_only},
        )


def plain(value: object) -> object:
    """Return a number of numpy as one of Python, as torch does for an operator."""
    return value.item() if isinstance(value, np.generic) else value


def count_truncated(tensor: Tensor, mean: float, std: float, a: float, b: float) -> int:
    """Return how often ``trunc_normal_`` writes a tensor, or the likelier count.

    It writes again if the first draw has a value out of bounds, which only a real draw
    would show.
    """
    inside = normal_cdf((b - mean) / std) - normal_cdf((a - mean) / std)
    if inside > LEAST_INSIDE:
        accepted = inside
    else:  # uniform draws: nearer to the mode they are accepted more often
        mode = (max(a, min(mean, b)) - mean) / std
        box = (b - a) / std * math.exp(-0.5 * mode**2) / math.sqrt(2 * math.pi)
        accepted = inside / box if box else 1
    return 1 if accepted ** tensor.numel() >= HALF else 2


def normal_cdf(x: float) -> float:
    """Return the share of a normal distribution below a value."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


GENERATOR: Final = ", *, Generator? generator=None"
INITIALIZERS: Final = {
    str(initializer): initializer
    for initializer in (
        Initializer(
            initialize_truncated,
            f", float mean, float std, float a, float b{GENERATOR}",
            count_truncated,
        ),
        Initializer(init.orthogonal_, f", float gain{GENERATOR}", lambda *_: 2),
        Initializer(
            init.sparse_,
            f", float sparsity, float std{GENERATOR}",
            lambda tensor, *_: 1 + tensor.shape[1],
        ),
        Initializer(
            init.dirac_,
            ", int groups",
            lambda w, groups: 1 + groups * min(w.shape[0] // groups, w.shape[1]),
        ),
    )
}
"""Initializers by the name in their rows."""

INITIALIZER_BY_CODE: Final = {it.function.__code__: it for it in INITIALIZERS.values()}


DATA: Final[Any] = Tensor.data
BEFORE: Final = "change it before the cell, "


class DataAttribute:
    """Implements ``x.data`` and ``x.data = y``."""

    def __init__(self, write: Writers, capture: ConstantCapture) -> None:
        self._registry, self._plan = write.registry, write.plan
        self._capture = capture

    def read_or_set(self, func: Any, tensor: Tensor, *source: Tensor) -> Any:
        """Return the data of a tensor, or set it."""
        if not source or not isinstance(source[0], Tensor):
            self._registry.note_alias(tensor)
            return func(tensor, *source)
        with DisableTorchFunction():
            given = self._find_source(tensor, source[0])
            is_plain = given.is_meta and given.layout is torch.strided
            adapted = adapt(tensor, given) if is_plain else given
        for alias in (tensor, given):
            self._registry.note_alias(alias)
        func(tensor, adapted)
        if adapted is not given:
            set_lazy_bits(tensor, given)
            self._registry.forget(id(tensor), None)
        return None

    def is_taken(self, func: Any, tensor: Tensor, source: Tensor) -> bool:
        """Return whether a tensor takes another's data: not between meta and others."""
        with DisableTorchFunction():
            tensors = tensor, source
            if not all(t.is_meta and t.layout is torch.strided for t in tensors):
                return bool(func(*tensors))
            return len({*map(self._plan.is_on_meta, tensors)}) == 1

    def _find_source(self, tensor: Tensor, source: Tensor) -> Tensor:
        """Return the meta tensor for a source, if a tensor is on meta."""
        if tensor.is_meta:
            return self._capture.capture(source) if is_capturable(source) else source
        if source.is_meta and is_capturable(tensor):
            self._capture.refuse_write("`.data =`", tensor, BEFORE)
        return source


def kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return the facts that torch compares for two meta tensors, and not on the CPU."""
    return tensor.is_inference(), tensor.is_conj(), tensor.is_neg()


def adapt(tensor: Tensor, source: Tensor) -> Tensor:
    """Return a tensor on the source's memory that ``tensor.data =`` accepts."""
    if kind_of(tensor) == kind_of(source):
        return source
    if tensor.is_inference() and not source.is_inference():
        take_plain_data(tensor, source)
    with DisableTorchDispatch(), torch.inference_mode(mode=tensor.is_inference()):
        made = torch.empty(0, dtype=source.dtype, device=META)
        geometry = source.storage_offset(), source.shape, source.stride()
        made = made.set_(source.untyped_storage(), *geometry).data
    set_lazy_bits(tensor, made)
    return made


DEVICE: Final[Any] = Tensor.device
GET_DEVICE: Final = frozenset[Any]({Tensor.get_device, torch.get_device})
ON_META: Final = torch.device("meta")
"""The device of what the code put on meta by name: unlike ``META``, it names one."""
IS_TYPE: Final[dict[Any, str]] = {
    getattr(Tensor, f"is_{name}"): name for name in ("cuda", "cpu", "xpu", "mps")
}
DEVICE_QUESTIONS: Final = frozenset[Any]({DEVICE, *IS_TYPE})
"""The attributes that say on which device a tensor is; ``is_meta`` answers truly."""

ASKING: Final = frozenset(
    {activation.__file__, flex_attention.__file__, transformer.__file__}
)
"""Files of torch that choose kernels by the device of a tensor."""

DISTRIBUTED: Final = inspect.getfile(distributed).removesuffix("__init__.py")
"""The folder whose files choose backends by the device of a tensor."""

MOVING: Final = f"{DISTRIBUTED}fsdp", f"{DISTRIBUTED}tensor"
"""The folders whose files move tensors to the device of a mesh, though the code names
none."""

DESCRIBING: Final = inspect.getfile(MetaConverter)
"""The file that asks for the device of a tensor to make a fake one of it."""

CHOOSING: Final = (OPTIM, functional.__file__)
"""Prefixes of the files that choose a kernel by ``x.is_cpu`` and the like."""


def as_fake(device: torch.device) -> torch.device:
    """Return a fake tensor's device: one that torch lacks would end the process."""
    return device if device.type == "cpu" else META


def gets_reported_device(asker: FrameType) -> bool:
    """Whether code gets a reported device for a tensor without a named one."""
    name, file = asker.f_code.co_name, asker.f_code.co_filename
    return name in REPORTED_DEVICE or file in ASKING or is_library(file)


FORWARDING: Final = "__torch_function__"
"""The name of functions that call what others have called: those of modes."""

REPORTED: Final = DEVICE_QUESTIONS | {IS_META, DATA}
"""Attributes whose answer may depend on who asks, or makes another tensor."""


class ReportedAttributes:
    """Answers for the attributes of ``REPORTED``, and records what follows.

    Where the code names no device, the cell's own code sees meta. A library sees the
    device on which the tensor would be; else it would skip work or refuse it.
    """

    def __init__(
        self, write: Writers, data: DataAttribute, dispatch: TorchDispatchMode
    ) -> None:
        self.data = data
        self._write, self._plan = write, write.plan
        self._dispatch = dispatch

    def answer(self, func: Any, args: Args, asker: FrameType) -> Any:
        """Return on which device a tensor is, or whether on meta; note ``.data``."""
        while asker.f_code.co_name == FORWARDING and asker.f_back is not None:
            asker = asker.f_back  # who asked within ``with torch.device(...)``
        if func.__self__ is IS_META:
            return self._read_is_meta(func, args, asker)
        if func.__self__ is DATA:
            return self.data.read_or_set(func, *args)
        if not (args[0].is_meta or has_carried_placement()):
            return func(*args)
        device = self._find(args[0], asker)
        if func.__self__ is DEVICE:
            return device
        if device == META and asker.f_code.co_filename.startswith(CHOOSING):
            device = self._plan.home
        return device.type == IS_TYPE[func.__self__]

    def number(self, tensor: Tensor, asker: FrameType) -> int:
        """Return the result of ``get_device()``: the device's index, -1 for the CPU."""
        device = self._find(tensor, asker)
        return -1 if device.type in ("cpu", "meta") else device.index

    def _find(self, tensor: Tensor, asker: FrameType) -> torch.device:
        code = asker.f_code
        is_as_it_is = code is PICKLING or code is CHECKPOINTING  # hashing code is slow
        if is_as_it_is or code.co_filename.startswith(PACKAGE):
            return tensor.device  # the true device: pickling would look for data
        placement = self._plan.placement_of(local_of(tensor))
        if code.co_filename == DESCRIBING:
            placement = as_fake(placement or self._plan.home)
        if placement is not None:
            return placement
        is_distributed = code.co_filename.startswith(DISTRIBUTED)
        is_asking = code.co_name in MAKE_REAL  # its tensor is only on meta by name
        if not (is_distributed or is_asking) and gets_reported_device(asker):
            return self._plan.home
        if self._plan.is_on_meta(local_of(tensor)):
            return ON_META
        is_planned = self._plan.in_world and self._write.registry.has_on_meta
        is_planned = is_planned and code is not FAKING
        if not (is_distributed or is_planned):
            return META
        # Where the code names GPUs, what it puts nowhere is on the CPU: DDP moves
        # inputs that are not on a GPU yet, scripts look for what is on meta still.
        is_moved = NamedDevices.exist or code.co_filename.startswith(MOVING)
        return CPU if is_moved else self._plan.home

    def _read_is_meta(self, func: Any, args: Args, asker: FrameType) -> bool:
        """Return whether a tensor is on meta; record an initializer that asks."""
        is_meta: bool = func(*args)
        if type(args[0]) not in PLAIN and local_of(args[0]) is not args[0]:
            # An initializer fills the local part of a DTensor.
            return is_meta and self._plan.is_on_meta(local_of(args[0]))
        code = asker.f_code
        initializer = INITIALIZER_BY_CODE.get(code) if is_meta else None
        if initializer is not None:
            sites = self._write.sites
            before = sites.running
            sites.running = Running(initializer.function, asker)
            arguments = initializer.read_arguments(asker)
            try:
                with DisableTorchDispatch():
                    self._dispatch.__torch_dispatch__(initializer, (), *arguments)  # type: ignore[no-untyped-call]  # as in torch
                    initializer.count_writes(arguments[0])
            finally:
                sites.running = before
        elif code is LOADING and not asker.f_locals[IS_ASSIGNING]:
            if not is_meta and asker.f_locals[LOADED].is_meta:
                self._write.note("load", UNLOADABLE)
            return False  # torch would warn that the copy, which is recorded, is idle
        if is_meta and code.co_filename.startswith(DISTRIBUTED):
            return self._plan.is_on_meta(local_of(args[0]))
        # ``distribute_tensor`` sends a tensor to other ranks, unless it is on meta.
        return is_meta and code.co_filename != SENDING
