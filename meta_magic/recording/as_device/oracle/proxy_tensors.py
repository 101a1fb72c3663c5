"""Proxy tensors: real tensors with the metadata and aliases of meta tensors.

The oracle runs a call of the CPU with them. They hold made-up values (``FILLINGS``), or
have memory that is reserved and never touched. Read ``ProxyTensors.make`` first.
"""

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
"""Writes made-up values into a flat tensor of zeros."""

WHOLE_NBYTES: Final = 2**19
"""Up to this size a proxy has the whole storage: some operators look at its size."""

UNRESERVED: Final = 0x4000 if sys.platform == "linux" else None
"""MAP_NORESERVE, which older Pythons do not name: untouched memory takes nothing. None
where there is no such flag."""


PLAIN: Final = (int, float, bool, complex, str, type(None), type(Ellipsis))
METADATA: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def write_ramp(flat: Tensor) -> None:
    """Write numbers between 0 and 1; integers are 0 and 1 in turn."""
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
    """Raised for an argument that can have no proxy."""


class ProxyTensors:
    """Makes proxies on the CPU; they share storages as the meta tensors do.

    Args:
        spans: How many bytes of each storage are used, by its address.
        fill: Writes their values; None leaves zeros.
        is_untouched: Whether their memory must not be read or written.
        has_gradients: Whether proxies of leaves that want a gradient want one, too.
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
        """Return the proxy of a tensor, the same one each time."""
        made = self._made.get(id(tensor))
        if made is None:
            with self._leave_inference(tensor):
                made = self._made[id(tensor)] = self._build(tensor)
        return made

    def _leave_inference(self, tensor: Tensor) -> AbstractContextManager[object]:
        """Return a context in which a proxy may want a gradient, if its tensor may."""
        is_outer = torch.is_inference_mode_enabled() and not tensor.is_inference()
        if is_outer and self._has_gradients:
            return torch.inference_mode(mode=False)
        return nullcontext()

    def _build(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:  # only a child may write a real tensor: it has a copy
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
        # requires_grad first: a view that was written gets a node when it is asked.
        if self._has_gradients and tensor.requires_grad and tensor.is_leaf:
            made = made.detach().requires_grad_()  # views of it read this of their base
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
    """Return the last used byte of each storage, by its address."""
    spans: dict[int, int] = {}
    for tensor in tensors:
        address = address_of_storage(tensor.untyped_storage())
        spans[address] = max(spans.get(address, 0), span_nbytes(tensor))
    return spans


def put_on_cpu(value: Any) -> Any:
    """Return an argument as a call on the CPU takes it.

    Raises:
        Unaskable: There is no such argument.
    """
    if isinstance(value, torch.device) or (type(value) is str and value == "meta"):
        return CPU
    if isinstance(value, torch.Generator):
        return torch.Generator()
    if isinstance(value, (Tensor, *PLAIN, *METADATA)):
        return value
    raise Unaskable
