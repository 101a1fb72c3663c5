"""``.to``, ``.cuda``, ``.cpu`` and ``.type`` move a plan: all tensors stay on meta."""

from types import FrameType
from typing import Any, Final, cast

import torch
from torch import Tensor

from meta_magic.recording.identities.call_sites import PACKAGE, TORCH_FILES
from meta_magic.recording.identities.device_plan import (
    META,
    WRITTEN,
    is_home,
    is_in_cpu_context,
)
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.reported_devices import gets_reported_device
from meta_magic.recording.rows.written import Written
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.tensor_internals import parse_to

MOVES: Final = frozenset[Any]({Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.type})
"""Functions by which tensors change their device."""

DEVICE_READERS: Final = frozenset[Any]({torch.device, parse_to})
"""Functions that read a named device, as ``Module.to`` does, and move nothing."""

NAMING: Final = torch.typename.__code__
"""The code by which torch names types in errors."""

CPU: Final = torch.device("cpu")
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
    """A copy to another device, whose gradient goes back to the first.

    Torch's own ``to`` compares devices, finds meta twice, and copies nothing.
    """

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

    def __init__(self, write: Written, capture: ConstantCapture) -> None:
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
            is_reported = plan.is_reported(device) and gets_reported_device(caller)
            return META if is_reported else plan.read(device)
        if torch.device(device) != META or not tensor.is_meta:
            return plan.read(device)
        # Code is reported meta if no device is named, torch's C++ always.
        is_torchs = caller.f_code.co_filename.startswith(TORCH_FILES)
        return here if is_torchs else plan.home

    def _move(self, tensor: Tensor, placement: torch.device, options: Kwargs) -> Tensor:
        """Return a tensor on a device; itself if it is there."""
        plan = self.plan
        here = plan.placement_of(tensor)
        home = plan.default or CPU
        is_at_home = placement == META or (
            placement == home and not plan.is_on_meta(tensor)
        )
        if here is None and tensor.is_meta and is_at_home:
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
        """Return the name of a tensor's type for its planned device."""
        placement = self.plan.placement_of(tensor)
        if placement is None and (
            caller.f_code is NAMING or gets_reported_device(caller)
        ):
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
