"""Methods that read the data of a tensor, which torch refuses before any operator."""

from collections.abc import Callable
from typing import Any, Final

import torch

from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchFunction

__all__ = ["DATA_PTR", "DATA_READERS", "TO_NUMPY", "check_place", "read_data"]

DATA_PTR: Final[Any] = torch.Tensor.data_ptr
IS_SET_TO: Final[Any] = torch.Tensor.is_set_to
IDENTIFYING: Final = frozenset({DATA_PTR, IS_SET_TO})
"""What tells which tensors share memory; torch cannot on meta."""

SPLITS: Final = frozenset[Any]((torch.tensor_split, torch.Tensor.tensor_split))
FORMAT: Final[Any] = torch.Tensor.__format__
NUMPY: Final[Any] = torch.Tensor.numpy
TO_NUMPY: Final = frozenset[Any](
    {NUMPY, torch.Tensor.__array__, torch.Tensor.__dlpack__}
)
"""What gives others the memory of a tensor."""

SHARE_MEMORY: Final[Any] = torch.Tensor.share_memory_
IS_SHARED: Final[Any] = torch.Tensor.is_shared
DLPACK_DEVICE: Final[Any] = torch.Tensor.__dlpack_device__
RECORD_STREAM: Final[Any] = torch.Tensor.record_stream
OF_MEMORY: Final = frozenset[Any](
    {torch.Tensor.pin_memory, SHARE_MEMORY, IS_SHARED, DLPACK_DEVICE, RECORD_STREAM}
)
"""What moves the memory of a tensor, of which there is none, or asks where it is."""

DATA_READERS: Final = SPLITS | TO_NUMPY | OF_MEMORY | IDENTIFYING | {FORMAT}

SHARED: Final = "shared with processes"
"""The attribute of a storage on meta that the code shared with other processes."""

APART: Final = (
    "memory was shared with other processes, and what they do is not recorded: they "
    "have copies of what was planned by then"
)
CPU: Final = torch.device("cpu")


def read_data(
    func: Any, args: Args, kwargs: Kwargs, note: Callable[[str, str], None]
) -> Any:
    """Call a method that reads the data of a tensor on its real values.

    Args:
        func: The method.
        args: Its positional arguments.
        kwargs: Its others.
        note: Takes the kind and the text of a note on the line that runs now.
    """
    tensor, *rest = args
    if func in OF_MEMORY:
        return answer_of_memory(func, tensor, note)
    if func is IS_SET_TO:
        return is_set_to(tensor, *rest, **kwargs)
    if func in SPLITS:  # at positions that may lie in a tensor
        rest = [v.cpu() if isinstance(v, torch.Tensor) else v for v in rest]
        positions = kwargs.get("tensor_indices_or_sections")
        if positions is not None:
            kwargs = {**kwargs, "tensor_indices_or_sections": positions.cpu()}
        return func(tensor, *rest, **kwargs)
    if func is FORMAT and (tensor.ndim or type(tensor) is not torch.Tensor):
        return func(*args, **kwargs)  # no number: its text
    return func(tensor.cpu(), *rest, **kwargs)


def answer_of_memory(
    func: Any, tensor: torch.Tensor, note: Callable[[str, str], None]
) -> Any:
    """Return what a method of ``OF_MEMORY`` does for a tensor of the CPU."""
    if func is DLPACK_DEVICE:
        return func(torch.empty(0, device=CPU))
    if func is RECORD_STREAM:
        return None
    attributes = vars(tensor.untyped_storage())
    if func is IS_SHARED:
        return SHARED in attributes
    if func is SHARE_MEMORY:
        note("process", APART)
        attributes[SHARED] = True
    return tensor


def check_place(func: Any, args: Args, kwargs: Kwargs, place: Any) -> None:
    """Refuse to give numpy a tensor that the code put on another device, as torch does.

    Raises:
        TypeError: It did, and did not force it.
    """
    is_forced = func is NUMPY and (kwargs.get("force") or any(args[1:]))
    if func in TO_NUMPY and place not in (None, CPU) and not is_forced:
        raise TypeError(
            f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )


def is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have each element at the same place of the same storage."""
    with DisableTorchFunction():
        if tensor.untyped_storage() is not other.untyped_storage():
            return False
        return all(
            getattr(tensor, name)() == getattr(other, name)()
            for name in ("storage_offset", "size", "stride")
        )
