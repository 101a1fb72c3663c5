"""Real tensors that stand for those of a call: metadata, aliases, made-up values."""

import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.oracle.child import NoAnswer
from meta_magic.recording.identities.geometries import span_nbytes
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    negate_lazily,
)

CPU: Final = torch.device("cpu")
Filling = Callable[[Tensor], object]
"""Writes made-up values into a tensor of one dimension, which holds zeros."""

WHOLE_NBYTES: Final = 2**19
"""Up to this size a storage is stood for as a whole: some operators look at it."""

UNRESERVED: Final = 0x4000 if sys.platform == "linux" else None
"""Memory that is never touched takes none with this flag, MAP_NORESERVE, which older
Pythons do not name; None where there is no such."""


PLAIN: Final = (int, float, bool, complex, str, type(None), type(Ellipsis))
TOLD: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def write_ramp(flat: Tensor) -> None:
    """Write numbers between 0 and 1, or 0 and 1 in turn."""
    if flat.dtype.is_floating_point or flat.dtype.is_complex:
        flat.copy_(torch.linspace(0.1, 0.9, flat.numel(), device=CPU))
    else:
        flat.copy_(torch.arange(flat.numel(), device=CPU) % 2)


FILLINGS: Final[tuple[Filling | None, ...]] = (
    None,
    lambda flat: flat.fill_(1),
    write_ramp,
)


class Unaskable(NoAnswer):
    """Raised by an argument that nothing can stand for."""


class ProxyTensors:
    """Tensors on the CPU like others on meta, those alike that share a storage.

    Args:
        spans: How many bytes of each storage they take, by its address.
        fill: What they hold; zeros if it is None.
        is_untouched: Whether they lie in memory that nobody is to read or to write.
        has_gradients: Whether those want one that stand for leaves that do.
    """

    def __init__(
        self,
        spans: Mapping[int, int],
        fill: Filling | None = None,
        *,
        is_untouched: bool = False,
        has_gradients: bool = False,
    ) -> None:
        self._has_gradients = has_gradients
        self._spans = spans
        self._fill = fill
        self._is_untouched = is_untouched
        self._bytes: dict[int, Tensor] = {}
        self._made: dict[int, Tensor] = {}

    def make(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor; the same one each time."""
        made = self._made.get(id(tensor))
        if made is None:
            with self._leave_inference(tensor):
                made = self._made[id(tensor)] = self._build(tensor)
        return made

    def _leave_inference(self, tensor: Tensor) -> AbstractContextManager[object]:
        """Return what makes a tensor one that may want a gradient, if one does."""
        is_outer = torch.is_inference_mode_enabled() and not tensor.is_inference()
        if is_outer and self._has_gradients:
            return torch.inference_mode(mode=False)
        return nullcontext()

    def _build(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:  # nor may it be written, but for a child's copy of it
            return tensor if self._is_untouched else tensor.clone()
        storage = tensor.untyped_storage()
        address = address_of_storage(storage)
        held = self._bytes.get(address)
        if held is None:
            nbytes = self._spans[address]
            is_whole = self._is_untouched or storage.nbytes() <= WHOLE_NBYTES
            nbytes = max(nbytes, storage.nbytes() if is_whole else 0, 1)
            held = self._bytes[address] = self._allocate(nbytes, tensor.dtype)
        n_items = held.numel() // tensor.element_size()
        flat = held[: n_items * tensor.element_size()].view(tensor.dtype)
        made = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            made = made.conj()
        if tensor.is_neg():
            made = negate_lazily(made)
        # In this order: a view that was written gets a node when it is asked.
        if self._has_gradients and tensor.requires_grad and tensor.is_leaf:
            made = made.detach().requires_grad_()  # views of it ask their base
        return made

    def _allocate(self, nbytes: int, dtype: torch.dtype) -> Tensor:
        if self._is_untouched:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (UNRESERVED or 0)
            memory = mmap.mmap(-1, nbytes, flags=flags)
            return torch.asarray(memory, dtype=torch.uint8, device=CPU)
        made = torch.zeros(nbytes, dtype=torch.uint8, device=CPU)
        if self._fill is not None:
            self._fill(made[: nbytes - nbytes % dtype.itemsize].view(dtype))
        return made


def measure_spans(tensors: Sequence[Tensor]) -> Mapping[int, int]:
    """Return up to which byte of each storage tensors lie, by its address."""
    spans: dict[int, int] = {}
    for tensor in tensors:
        address = address_of_storage(tensor.untyped_storage())
        spans[address] = max(spans.get(address, 0), span_nbytes(tensor))
    return spans


def rebuild(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return arguments with each that is no list, tuple, dict or slice replaced."""
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        return kind([rebuild(item, replace) for item in value])
    if isinstance(value, dict):
        return {name: rebuild(item, replace) for name, item in value.items()}
    if type(value) is slice:
        parts = value.start, value.stop, value.step
        return slice(*[rebuild(part, replace) for part in parts])
    return replace(value)


def put_on_cpu(value: Any) -> Any:
    """Return an argument as it is given on the CPU.

    Raises:
        Unaskable: Nothing can stand for it.
    """
    if isinstance(value, torch.device) or (type(value) is str and value == "meta"):
        return CPU
    if isinstance(value, torch.Generator):
        return torch.Generator()
    if isinstance(value, (Tensor, *PLAIN, *TOLD)):
        return value
    raise Unaskable
