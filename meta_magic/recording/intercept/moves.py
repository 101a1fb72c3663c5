"""``.to``, ``.cuda``, ``.cpu`` and ``.type`` move a plan: all tensors stay on meta.

Also here: operators on tensors of several devices are refused. In torch 2.13 ``mm``,
``embedding``, indexing and others, given a real and a meta tensor, return a real tensor
of whatever lay in memory, and no error; ``real.add_(meta)`` does nothing. So an
operator that reads a meta tensor and returns a real one is an error, unless it only
takes the other's shape (``check_devices``). Among planned devices ``join_placements``
decides: torch would refuse ``x.cuda() + y`` with ``y`` on the CPU on a real GPU.

``copy.deepcopy`` copies a storage that two tensors share once, and ``copy.copy`` none.
On meta torch clones each tensor instead; ``copy_deeply`` does as on the CPU.
"""

import copy
from collections.abc import Sequence
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any, Final, cast

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MetaMagicError, MixedDeviceError
from meta_magic.recording.identities.call_sites import PACKAGE, TORCH_FILES
from meta_magic.recording.identities.device_plan import (
    WRITTEN,
    is_home,
    is_in_cpu_context,
)
from meta_magic.recording.identities.tensors import LiveGeometry, TensorRegistry
from meta_magic.recording.intercept.real_tensors.capturable import (
    BY_PAIRS,
    INDEXING,
    find_real,
    takes_numbers,
)
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.reported_devices import gets_reported_device
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Kwargs, LiveCall, OpTable
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    RECONSTRUCTING,
    base_of,
    copy_lazy_bits,
    parse_to,
)
from meta_magic.trace.signature import CPU, META, SHAPE_ONLY
from meta_magic.trace.units import format_shape

DEEPCOPY: Final[Any] = Tensor.__deepcopy__
UNPICKLED: Final = (
    "a tensor was unpickled without data: its values were not computed when it was "
    "pickled, and so pickle kept its shape alone (see copy.deepcopy)"
)
MAX_FRAMES: Final = 10
COPYING: Final = copy.copy.__code__


def copy_deeply(args: Args, registry: TensorRegistry) -> Tensor:
    """Return a copy of a tensor, on a copy of its storage that its aliases share."""
    tensor, memo = args
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
    if not is_plain or not tensor.is_leaf or tensor.is_quantized or id(tensor) in memo:
        made: Tensor = DEEPCOPY(tensor, memo)
        return made
    registry.note_alias(tensor)
    with torch.no_grad():
        storage = copy.deepcopy(tensor.untyped_storage(), memo)
        made = tensor.new_empty(())
        made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        with DisableTorchFunction():
            registry.note_deaths()
            registry.set_placement(made, registry.placement_of(tensor))
        if tensor.is_conj():
            made = made.conj_physical()
        if tensor.is_neg():
            made = made.neg()
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
        made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    memo[id(tensor)] = made
    return made


def is_copying(caller: FrameType) -> bool:
    """Whether ``copy.copy`` asks how a tensor is pickled, in or below a frame."""
    frames = islice(walk_stack(caller), MAX_FRAMES)
    return any(frame.f_code is COPYING for frame, _ in frames)


def find_copied(caller: FrameType) -> object:
    """Return the object that ``copy.copy`` copies in or below a frame; None if none."""
    for frame, _ in islice(walk_stack(caller), MAX_FRAMES):
        if frame.f_code is RECONSTRUCTING:
            return frame.f_locals["x"]
    return None


def copy_shallowly(caller: FrameType, registry: TensorRegistry) -> Tensor | None:
    """Return another tensor on the storage of the one that ``copy.copy`` copies now."""
    copied = find_copied(caller)
    if not isinstance(copied, Tensor):
        return None
    registry.note_alias(copied)
    made = rebuild_on(copied.untyped_storage(), copied, copied.storage_offset())
    if copied.is_conj() or copied.is_neg():
        copy_lazy_bits(made, copied)
        registry.forget(id(made))  # it was seen without the lazy bits
    return made


def rebuild_on(storage: UntypedStorage, like: Tensor, offset: Any = 0) -> Tensor:
    """Return a tensor on a storage, made as torch unpickles one."""
    with torch.no_grad():
        made = torch.empty((0,), dtype=like.dtype, device=storage.device)
        made.set_(storage, offset, like.shape, like.stride())
    return made.requires_grad_(like.requires_grad)


MOVES: Final = frozenset[Any]({Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.type})
"""Functions by which tensors change their device."""

DEVICE_READERS: Final = frozenset[Any]({torch.device, parse_to})
"""Functions that read a named device, as ``Module.to`` does, and move nothing."""

NAMING: Final = torch.typename.__code__  # the code by which torch names types in errors

TO, TO_CPU, TO_CUDA = cast("Any", (Tensor.to, Tensor.cpu, Tensor.cuda))
TYPE: Final[Any] = Tensor.type
FORMATS: Final = (None, torch.preserve_format)

DTYPES: Final = {
    "Float": torch.float,
    "Double": torch.double,
    "Half": torch.half,
    "BFloat16": torch.bfloat16,
    "Long": torch.long,
    "Int": torch.int,
    "Short": torch.short,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
"""The dtypes of torch's older tensor types, such as ``torch.cuda.FloatTensor``."""


class _Move(torch.autograd.Function):
    """A copy to another device: torch's ``to`` copies nothing from meta to meta."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mover: "Mover", options: Any) -> Tensor:
        ctx.mover, ctx.dtype = mover, tensor.dtype
        ctx.placement = mover.plan.placement_of(tensor) or META
        return mover.copy(tensor, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        options = (ctx.placement, {"dtype": ctx.dtype})
        return ctx.mover.carry(grad, *options), None, None


def is_cast(func: Any, args: Args, kwargs: Kwargs | None) -> bool:
    """Whether a call moves nothing: ``to`` with only a dtype, as most calls."""
    return (
        func is TO and len(args) == 2 and not kwargs and type(args[1]) is torch.dtype  # noqa: PLR2004
    )


class Mover:
    """Moves tensors from one planned device to another."""

    def __init__(self, write: Writers, capture: ConstantCapture) -> None:
        self.plan = write.plan
        self._capture = capture

    def move(self, func: Any, args: Args, kwargs: Kwargs, caller: FrameType) -> Any:
        """Run a function that moves a tensor, if a device is named."""
        given = (*args[1:], *kwargs.values())
        if is_in_cpu_context(caller) or caller.f_code.co_filename.startswith(PACKAGE):
            return NotImplemented
        tensor = args[0]
        if func is TYPE and len(args) == 1 and not kwargs:
            return self._name_type(tensor, caller)
        device, options = self._read(func, args[1:], dict(kwargs))
        if device is None or self.plan.is_real:
            return NotImplemented
        is_written = any(value is WRITTEN for value in given)
        placement = META if is_written else self._find_placement(tensor, device, caller)
        if not tensor.is_meta and placement.type in ("cpu", "meta"):
            return self._move_real(func, tensor, options, is_written=is_written)
        return self._move(self._capture.take(tensor), placement, options)

    def read_device(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a function that reads a device; a number means a planned GPU."""
        named = kwargs.get("device", args[0] if args else None)
        if func is torch.device and is_home(named):
            return named
        if type(named) is not int or self.plan.is_real:
            return func(*args, **kwargs)
        device = torch.device("cuda", named)
        if "device" in kwargs:
            return func(*args, **{**kwargs, "device": device})
        return func(device, *args[1:], **kwargs)

    def _find_placement(self, tensor: Tensor, device: Any, caller: FrameType) -> Any:
        """Return the target of a move, which may be the reported device."""
        plan, here = self.plan, self.plan.placement_of(tensor)
        if here is None:
            is_reported = device is plan.home and gets_reported_device(caller)
            return META if is_reported else plan.read(device)
        if torch.device(device) != META or not tensor.is_meta:
            return plan.read(device)
        # Code is reported meta if no device is named, torch's C++ always.
        is_torchs = caller.f_code.co_filename.startswith(TORCH_FILES)
        return here if is_torchs else plan.home

    def _move(self, tensor: Tensor, placement: torch.device, options: Kwargs) -> Tensor:
        plan, here = self.plan, self.plan.placement_of(tensor)
        is_home = placement == (plan.default or CPU) and not plan.is_on_meta(tensor)
        if here is None and tensor.is_meta and (is_home or placement == META):
            here = placement  # a factory would have made it there
            plan.set_placements([tensor], placement)
        if here != placement:
            return self.carry(tensor, placement, options)
        is_same = options.get("memory_format") in FORMATS and not options.get("copy")
        if is_same and options.get("dtype") in (None, tensor.dtype):
            return tensor
        return Tensor.to(tensor, **options)

    def carry(self, tensor: Tensor, placement: torch.device, options: Kwargs) -> Tensor:
        """Return a copy on another device, through which gradients flow back."""
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Move.apply(tensor, self, (placement, options))  # type: ignore[no-any-return, no-untyped-call]  # torch's has no types
        return self.copy(tensor, placement, options)

    def copy(self, tensor: Tensor, placement: torch.device, options: Kwargs) -> Tensor:
        """Return a copy on another device."""
        plan, before = self.plan, self.plan.wanted
        plan.wanted = placement
        try:
            return Tensor.to(tensor, **{**options, "copy": True, "device": META})
        finally:
            plan.wanted = before

    def _move_real(
        self, func: Any, tensor: Tensor, options: Kwargs, *, is_written: bool
    ) -> Any:
        """Run such a function on a real tensor that may stay where it is."""
        if func is TYPE:  # torch has no type for planned devices
            return tensor.to(options["dtype"])
        if not is_written:
            return NotImplemented
        moved = Tensor.to(tensor, device=META, **options)
        self.plan.set_placements([moved], META)
        return moved

    def _name_type(self, tensor: Tensor, caller: FrameType) -> Any:
        placement = self.plan.placement_of(tensor)
        is_reported = caller.f_code is NAMING or gets_reported_device(caller)
        if placement is None and is_reported:
            placement = self.plan.home
        kind: str = Tensor.type(tensor)
        if placement is None or not tensor.is_meta:
            return kind
        return kind.replace("meta.", "" if placement == CPU else f"{placement.type}.")

    def _read(self, func: Any, rest: Args, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the device that a move names, if any, and its other options."""
        kept = ("copy", "memory_format")
        options = {name: kwargs.pop(name) for name in kept if name in kwargs}
        if func is TO_CPU:
            return CPU, options
        if func is TO_CUDA:
            device = rest[0] if rest else kwargs.get("device")
            if type(device) is int:
                device = torch.device("cuda", device)
            return ("cuda" if device is None else device), options
        if func is TYPE:
            device, options["dtype"] = read_type(rest[0] if rest else kwargs["dtype"])
            return device, options
        other = rest[0] if rest else kwargs.get("other")
        if isinstance(other, Tensor):
            placement = self.plan.placement_of(other)
            return placement or META, {**options, "dtype": other.dtype}
        flags = [value for value in rest if isinstance(value, bool)]
        if len(flags) > 1:
            options["copy"] = flags[1]
        named = [value for value in rest if not isinstance(value, bool)]
        parsed = self.read_device(parse_to, (*named,), kwargs)
        device, dtype, _, memory_format = parsed
        given = (v for v in (*named, *kwargs.values()) if isinstance(v, torch.device))
        device = next(given, device)  # itself: it may be the reported device
        if memory_format is not None:
            options["memory_format"] = memory_format
        return device, options if dtype is None else {**options, "dtype": dtype}


def read_type(kind: Any) -> tuple[str | None, torch.dtype]:
    """Return device and dtype of a type, as ``torch.cuda.FloatTensor`` or its name."""
    if isinstance(kind, torch.dtype):
        return None, kind
    text = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    stem = text.rpartition(".")[2].removesuffix("Tensor")
    return ("cuda" if ".cuda." in text else "cpu"), DTYPES[stem]


PACKING: Final = "aten._pack_padded_sequence."


def check_devices(op: str, call: LiveCall) -> None:
    """Raise if the call read a meta tensor and returned a real one."""
    metas = [t for t, seen in call.inputs if seen[2].is_meta]
    # Packed batch sizes are on the CPU, as their lengths are.
    is_of_shapes = op.split(".")[1] in SHAPE_ONLY or op.startswith(PACKING)
    if not metas or is_of_shapes or all(seen[2].is_meta for _, seen in call.outputs):
        return
    reals = [t for t, seen in (*call.inputs, *call.outputs) if not seen[2].is_meta]
    raise MixedDeviceError(
        f"{op} got a real and a meta tensor: {describe(reals[0])} and "
        f"{describe(metas[0])}. torch would return uninitialized memory. "
        f"{advise(reals[0])}."
    )


def explain_mix(error: Exception, tensors: Sequence[Tensor]) -> None:
    """Add to an operator's own error which tensors were real and which were meta."""
    metas = [t for t in tensors if t.is_meta]
    reals = [t for t in tensors if not t.is_meta and t.ndim]
    is_new = isinstance(error, RuntimeError) and not hasattr(error, "__notes__")
    is_due = "device" in str(error) or "meta" in str(error)
    is_ours = isinstance(error, MetaMagicError)
    if metas and reals and is_new and is_due and not is_ours:
        error.add_note(
            f"meta_magic: {describe(reals[0])} is real, {describe(metas[0])} is meta. "
            f"{advise(reals[0])}."
        )


def advise(real: Tensor) -> str:
    """Return advice on how to put a real and a meta tensor on one device."""
    both = "or both real (with torch.device('cpu'): ...)"
    if isinstance(real, nn.Parameter):
        return (
            "Build its module in the cell (where load_state_dict copies values; "
            f"assign=True puts real tensors there) {both}"
        )
    return (
        "Make both meta (x.to('meta') keeps values, mm.meta_like(x) strides and views) "
        f"{both}"
    )


def describe(tensor: Tensor) -> str:
    """Describe a tensor, or what it is a view of, if running code has a name for it."""
    name, is_exact = find_real(tensor)
    whole = tensor if is_exact else base_of(tensor)
    dtype = str(whole.dtype).removeprefix("torch.")
    where = f"{whole.device} {dtype} {format_shape(whole.shape)}"
    kind = "" if whole is tensor else "a view of "
    return f"{kind}{'a tensor' if name is None else repr(name)} ({where})"


FIRST_DECIDES: Final = frozenset(
    {"aten.copy_.default", "aten._to_copy.default", "aten.set_.source_Tensor"}
    | {"aten.lift_fresh.default", "aten._pack_padded_sequence.default"}
)
"""Operators that accept several devices; the result is on the first one."""


def join_placements(table: OpTable, inputs: list[LiveGeometry]) -> torch.device | None:
    """Return the planned device of an operator's new tensors; refuse to mix devices."""
    placements = {geometry.placement for geometry in inputs}
    if len(placements) == 1:
        return placements.pop()
    name = table.name
    first = inputs[0].placement if inputs else None
    if not inputs or name in FIRST_DECIDES or name.startswith(BY_PAIRS):
        return first
    placed = [geometry for geometry in inputs if geometry.placement is not None]
    if name in INDEXING:
        placed = [g for g in placed if g is inputs[0] or g.placement != CPU] or placed
    if takes_numbers(table):
        placed = [g for g in placed if g.shape or g.placement != CPU] or placed
    for other in placed:
        if other.placement != placed[0].placement:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {placed[0].placement} and {other.placement}! ({name})"
            )
    return placed[0].placement
