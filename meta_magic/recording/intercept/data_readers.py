"""Implement functions that read a tensor's data: ``x.numpy()``, ``print(x)``.

torch refuses these on meta before any operator runs, so no mode can answer them. Here
the values are computed by a replay and handed to torch's own method, which formats
them or raises its own errors. :class:`Packer` reads the lengths of sequences.
"""

import ctypes
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, TypedStorage, UntypedStorage, nn

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.call_sites import PACKAGE, TORCH_FILES, TakeNote
from meta_magic.recording.identities.storages import FIRST_UNMAPPED
from meta_magic.recording.intercept.shared_memory import (
    SHARED_WITH_PROCESSES,
    SharedMemory,
)
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import pack_padded, pad_packed
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    functorch_interpreter,
    n_dispatch_modes,
)
from meta_magic.torch_private.replacing import STORAGE_READERS, TEXT_OF_TENSOR
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import (
    SOBOL,
    SOBOL_DRAW,
    join_suffixes,
    untyped_of,
    write_values,
)
from meta_magic.trace.signature import CPU, META

DATA_PTR: Final[Any] = torch.Tensor.data_ptr
IS_SET_TO: Final[Any] = torch.Tensor.is_set_to
IDENTIFYING: Final = frozenset({DATA_PTR, IS_SET_TO})
"""Functions that show which tensors share memory; torch's cannot on meta."""

SPLITS: Final = frozenset[Any]((torch.tensor_split, torch.Tensor.tensor_split))
FORMAT: Final[Any] = torch.Tensor.__format__
NUMPY: Final[Any] = torch.Tensor.numpy
TO_NUMPY: Final = frozenset[Any]({NUMPY, Tensor.__array__, Tensor.__dlpack__})
"""Functions that share the memory of a tensor."""

SHARE_MEMORY: Final[Any] = torch.Tensor.share_memory_
IS_SHARED: Final[Any] = torch.Tensor.is_shared
DLPACK_DEVICE: Final[Any] = torch.Tensor.__dlpack_device__
RECORD_STREAM: Final[Any] = torch.Tensor.record_stream
OF_MEMORY: Final = frozenset[Any](
    {torch.Tensor.pin_memory, SHARE_MEMORY, IS_SHARED, DLPACK_DEVICE, RECORD_STREAM}
)
"""Functions that move the memory of a tensor, or return its address."""

DATA_READERS: Final = SPLITS | TO_NUMPY | OF_MEMORY | IDENTIFYING | SOBOL | {FORMAT}

APART: Final = (
    "memory was shared with other processes: these have copies, and what they do is "
    "not recorded"
)


def read_data(func: Any, args: Args, kwargs: Kwargs, note: TakeNote) -> Any:
    """Call a method that reads the data of a tensor on its real values."""
    tensor, *rest = args
    if func in OF_MEMORY:
        return answer_of_memory(func, tensor, note)
    if func is IS_SET_TO:
        return is_set_to(tensor, *rest, **kwargs)
    if func in SPLITS:  # the positions may be in a tensor
        rest = [v.cpu() if isinstance(v, torch.Tensor) else v for v in rest]
        positions = kwargs.get("tensor_indices_or_sections")
        if positions is not None:
            kwargs = {**kwargs, "tensor_indices_or_sections": positions.cpu()}
        return func(tensor, *rest, **kwargs)
    if func is FORMAT and (tensor.ndim or type(tensor) is not torch.Tensor):
        return func(*args, **kwargs)  # more than a number: its text
    return func(tensor.cpu(), *rest, **kwargs)


def answer_of_memory(func: Any, tensor: torch.Tensor, note: TakeNote) -> Any:
    """Return what a method of ``OF_MEMORY`` returns for a tensor on the CPU."""
    if func is DLPACK_DEVICE:
        return func(torch.empty(0, device=CPU))
    if func is RECORD_STREAM:
        return None
    attributes = vars(tensor.untyped_storage())
    if func is IS_SHARED:
        return SHARED_WITH_PROCESSES in attributes
    if func is SHARE_MEMORY:
        note("process", APART)
        attributes[SHARED_WITH_PROCESSES] = True
    return tensor


def check_readable(func: Any, args: Args, kwargs: Kwargs, placement: Any) -> None:
    """Refuse to give numpy a tensor that the code put on another device."""
    is_forced = func is NUMPY and (kwargs.get("force") or any(args[1:]))
    if func in TO_NUMPY and placement not in (None, CPU) and not is_forced:
        raise TypeError(
            f"can't convert {placement} device type tensor to numpy. Use Tensor.cpu() "
            "to copy the tensor to host memory first."
        )


def is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have all elements at the same positions of one storage."""
    with DisableTorchFunction():
        if tensor.untyped_storage() is not other.untyped_storage():
            return False
        names = "storage_offset", "size", "stride"
        return all(getattr(tensor, n)() == getattr(other, n)() for n in names)


def run_sobol(func: Any, args: Args, kwargs: Kwargs, recording: Any) -> Any:
    """Run a step of a Sobol engine on real values; record its results as constants.

    torch computes these steps from the memory of the state, the first argument, and
    runs no operator that a mode could see.
    """
    real = [arg.cpu() if isinstance(arg, Tensor) else arg for arg in args]
    with DisableTorchFunction(), DisableTorchDispatch():
        returned = func(*real, **kwargs)
    with recording:
        if func is not SOBOL_DRAW:  # it wrote the state
            return args[0].copy_(torch.from_numpy(real[0].numpy()))
        return tuple(torch.from_numpy(tensor.numpy()) for tensor in returned)


ADVICE: Final = (
    "Give the value in Python, or compute it under `with torch.device('cpu'):`"
)


MEMORY_READERS: Final = ("string_at", "wstring_at", "memmove", "memset", "cast")
"""Functions of ctypes that keep the lower 64 bits of an address; others refuse a longer
address."""


class ReadStorages(RecordingReplacements):
    """Reads storages on meta, and notes their sizes, in the block and its thread."""

    def __init__(
        self, write: Writers, values: ValueSource, shared: SharedMemory
    ) -> None:
        super().__init__(write)
        self._shared = shared
        self._registry = write.registry
        self._values = values

    def __enter__(self) -> None:
        for owner, name in STORAGE_READERS:
            self.replace_here(owner, {name: self._read})
        methods = {"resize_": self._resize, "data_ptr": self._find_address}
        self.replace_here(UntypedStorage, methods)
        self.replace_here(ctypes, dict.fromkeys(MEMORY_READERS, refuse_made_up))

    def _read(self, plain: Callable[..., Any], storage: Any, *args: Any) -> Any:
        """Call a method of a storage; for one on meta, on its computed values."""
        untyped = untyped_of(storage)
        if untyped.device.type != "meta" or not untyped.nbytes():
            return plain(storage, *args)
        whole = self._make_real(untyped)
        with WithoutModes():
            real = whole.untyped_storage().clone()  # the caller may write it
            if not isinstance(storage, UntypedStorage):
                real = TypedStorage(wrap_storage=real, dtype=storage.dtype)
            return plain(real, *args) if args else iter([*plain(real)])

    def _find_address(self, plain: Callable[..., int], storage: UntypedStorage) -> int:
        """Return the address of a storage; a made-up one for a storage on meta."""
        address = plain(storage)
        if address or storage.device.type != "meta":
            return address
        return self._shared.find_address(storage)

    def _resize(self, plain: Any, storage: UntypedStorage, *args: Any) -> Any:
        returned = plain(storage, *args)
        self._registry.note_resized(storage)
        return returned

    def _make_real(self, untyped: UntypedStorage) -> Tensor:
        """Return the bytes that a storage on meta would hold."""
        with DisableTorchFunction(), DisableTorchDispatch():
            whole = torch.empty(0, dtype=torch.uint8, device="meta").set_(untyped)
            self._registry.note_deaths()
            chosen = [(whole, self._registry.read(whole))]
        try:
            (real,) = self._values.read(chosen)
        except MissingValueError as error:
            raise type(error)(
                f"a storage of {untyped.nbytes():,} bytes on meta is read: {error}. "
                f"{ADVICE}."
            ) from None
        return real


def refuse_made_up(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuse an address that was made up, which would end the process; else call."""
    for given in (*args, *kwargs.values()):
        address = getattr(given, "value", given)
        if type(address) is int and address >= FIRST_UNMAPPED:
            raise MissingValueError(
                f"{address:#x} is the address of a tensor on meta, which has no "
                "memory: it only distinguishes tensors. Read values by x.numpy() or "
                "x.tolist()"
            )
    return plain(*args, **kwargs)


NO_VALUES: Final = "..."
SUFFIX: Final = re.compile(r",\s+(?=[a-z_]+=)")
"""The text before each suffix, such as ``dtype=torch.int64``, in torch's texts."""

WRITING: Final = frozenset(
    {"__format__", "__repr__", "__str__", "extra_repr", "handle_torch_function"}
)
"""Functions that format a tensor because the code asked for a text."""

ABOUT_GRADIENTS: Final = ("grad_fn=", "requires_grad=", "tangent=")
PLAIN: Final = (Tensor, nn.Parameter)

Write: TypeAlias = Callable[..., str]


class ShownTensors(RecordingReplacements):
    """Formats tensors on meta with their values, within the block and in its thread."""

    def __init__(
        self,
        write: Writers,
        values: ValueSource,
        *,
        is_recording: bool = True,
        has_placements: bool = True,
    ) -> None:
        super().__init__(write)
        self._is_recording = is_recording
        self._has_placements = has_placements
        self._registry = write.registry
        self._values = values

    def __enter__(self) -> None:
        owner, name = TEXT_OF_TENSOR
        self.replace_here(owner, {name: self._write_text})

    def _write_text(
        self, torch_writes: Write, tensor: Tensor, *, tensor_contents: str | None = None
    ) -> str:
        """Return the text of a tensor; of one on meta with its values."""
        has_mode = n_dispatch_modes() or functorch_interpreter() is not None
        is_in_kernel = self._is_recording and not has_mode
        is_said = tensor_contents is not None or is_in_kernel
        with DisableTorchFunction():
            is_on_meta = tensor.is_meta
        if is_said or not is_on_meta:
            return torch_writes(tensor, tensor_contents=tensor_contents)
        return self._format(tensor, torch_writes)

    def _format(self, tensor: Tensor, torch_writes: Write) -> str:
        """Return the text of a tensor on meta; unknown values raise no error."""
        self._registry.note_deaths()
        with DisableTorchFunction():
            seen = self._registry.read(tensor)
        storage = seen[1]
        if storage is None:  # sparse, nested, or a wrapper of torch.func
            return torch_writes(tensor)
        try:
            real = self._values.peek(tensor, seen)
        except Exception:  # noqa: BLE001  a repr raises nothing
            real = None
        placement = storage.placement if self._has_placements else None
        if real is None and placement is None:  # an outer recording may know more
            return torch_writes(tensor)
        if placement is None and self._is_recording and is_for_torch(sys._getframe()):
            placement = self._plan.home
        with WithoutModes(), torch.no_grad():
            return describe(tensor, real, placement, torch_writes)


def is_for_torch(frame: FrameType | None) -> bool:
    """Whether torch itself formats a tensor, for example in the text of an error."""
    while frame is not None:
        code = frame.f_code
        if not (code.co_name in WRITING or code.co_filename.startswith(PACKAGE)):
            return code.co_filename.startswith(TORCH_FILES)
        frame = frame.f_back
    return False


def describe(
    tensor: Tensor,
    real: Tensor | None,
    placement: torch.device | None,
    torch_writes: Write,
) -> str:
    """Return the text of a meta tensor."""
    if real is not None and real.layout is not torch.strided:
        return write_sparse(tensor, real, placement, torch_writes)
    kind = type(tensor)
    indent = len("tensor(" if kind in PLAIN else f"{kind.__name__}(")
    values = NO_VALUES if real is None else write_values(real, indent)
    if placement is None:
        return torch_writes(tensor, tensor_contents=values)
    head, *suffixes = split(torch_writes(tensor, tensor_contents=""))
    about: list[Any] = [] if placement.type == "cpu" else [f"device='{placement}'"]
    if real is None:
        about += [s for s in suffixes if not s.startswith("device=")]
    else:
        about += split(torch_writes(real.detach(), tensor_contents=""))[1:]
        about += [s for s in suffixes if s.startswith(ABOUT_GRADIENTS)]
    return join_suffixes(head + values, about, indent)


def write_sparse(
    tensor: Tensor, real: Tensor, placement: torch.device | None, torch_writes: Write
) -> str:
    """Return the text of a sparse tensor; as ``describe``."""
    text = torch_writes(real.detach()).removesuffix(")")
    is_on_cpu = placement is not None and placement.type == "cpu"
    about = [] if is_on_cpu else [f"device='{placement or 'meta'}'"]
    suffixes = split(torch_writes(tensor))
    about += [suffix for suffix in suffixes if suffix.startswith(ABOUT_GRADIENTS)]
    return ", ".join([text, *about]) + ")"


def split(text: str) -> list[str]:
    """Return the head of a tensor's text, and its suffixes."""
    return SUFFIX.split(text.removesuffix(")"))


PACKING: Final = frozenset[Any]({pack_padded, pad_packed})


class Packer:
    """Packs and pads sequences on meta; the returned lengths are constants."""

    def __init__(self, write: Writers) -> None:
        self._plan, self._constants = write.plan, write.constants

    def run(self, func: Any, args: Args) -> Any:
        """Pack with the values of the lengths, or pad and return lengths on meta."""
        return self._pack(*args) if func is pack_padded else self._pad(*args)

    def _pack(self, data: Tensor, lengths: Tensor, *rest: Any) -> Any:
        placement = self._plan.placement_of(lengths) or CPU
        if placement.type not in ("cpu", "meta"):
            kind = str(lengths.type()).rpartition(".")[2].removesuffix("Tensor")
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, but got "
                f"{lengths.ndim}D {placement.type} {kind} tensor"
            )
        return pack_padded(data, lengths.cpu(), *rest)

    def _pad(self, *args: Any) -> Any:
        padded, lengths = pad_packed(*args)
        if lengths.is_meta:
            return padded, lengths
        values = lengths.tolist()
        made = torch.tensor(values, device=META)
        self._constants.note_values(made, torch.tensor, (values,), {})
        self._plan.set_placements([made], CPU)
        return padded, made
