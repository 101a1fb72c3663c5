"""Storages of meta tensors that are read, found or resized by methods of their own.

No operator does it. Torch refuses to read one on meta; a cell gets the values that it
would have, in what torch makes of a real storage: its numbers, and its errors. What is
resized, as sharded training does it, takes other memory from then on.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.storages import FIRST_UNMAPPED
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.intercept.value_source import ValueSource
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replaced import STORAGE_READERS
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import untyped_of

__all__ = ["ReadStorages"]

ADVICE: Final = (
    "Give the value in Python, or compute it under `with torch.device('cpu'):`"
)


MEMORY_READERS: Final = ("string_at", "wstring_at", "memmove", "memset", "cast")
"""Functions of ctypes that keep the lower 64 bits of an address; others refuse one that
has more."""


class ReadStorages(Replacements):
    """Read storages on meta, and hear of their sizes, in the block and its thread.

    Args:
        registry: Knows storages.
        values: Knows what a tensor holds.
        shared: Knows where storages are.
    """

    def __init__(
        self, registry: TensorRegistry, values: ValueSource, shared: SharedMemory
    ) -> None:
        super().__init__()
        self._shared = shared
        self._registry = registry
        self._values = values

    def __enter__(self) -> None:
        for owner, name in STORAGE_READERS:
            self.replace_here(owner, {name: self._read})
        methods = {"resize_": self._resize, "data_ptr": self._find_address}
        self.replace_here(UntypedStorage, methods)
        self.replace_here(ctypes, dict.fromkeys(MEMORY_READERS, refuse_made_up))

    def _read(self, plain: Callable[..., Any], storage: Any, *args: Any) -> Any:
        """Call a method of a storage; of one on meta, on what it would be for real."""
        untyped = untyped_of(storage)
        if untyped.device.type != "meta" or not untyped.nbytes():
            return plain(storage, *args)
        whole = self._make_real(untyped)
        with WithoutModes():
            real = whole.untyped_storage().clone()  # which may be written
            if not isinstance(storage, UntypedStorage):
                real = TypedStorage(wrap_storage=real, dtype=storage.dtype)
            return plain(real, *args) if args else iter([*plain(real)])

    def _find_address(self, plain: Callable[..., int], storage: UntypedStorage) -> int:
        """Return where a storage is; of one on meta, at which made-up address."""
        address = plain(storage)
        if address or storage.device.type != "meta":
            return address
        return self._shared.find_address(storage)

    def _resize(
        self, plain: Callable[..., Any], storage: UntypedStorage, *args: Any
    ) -> Any:
        """Resize a storage, and note its bytes."""
        returned = plain(storage, *args)
        self._registry.note_resized(storage)
        return returned

    def _make_real(self, untyped: UntypedStorage) -> Tensor:
        """Return the bytes that a storage on meta would hold.

        Raises:
            MissingValueError: They cannot be computed, or take too much.
        """
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
    """Call what reads memory, unless it is to read at an address that was made up.

    Raises:
        MissingValueError: It is: without this the process ends.
    """
    for given in (*args, *kwargs.values()):
        address = getattr(given, "value", given)
        if type(address) is int and address >= FIRST_UNMAPPED:
            raise MissingValueError(
                f"{address:#x} is the address of a tensor on meta, which has no "
                "memory: it only tells tensors apart. Read values by x.numpy() or "
                "x.tolist()"
            )
    return plain(*args, **kwargs)
