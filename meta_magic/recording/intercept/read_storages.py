"""Storages of meta tensors that are read or resized by methods of their own.

No operator does it. Torch refuses to read one on meta; a cell gets the values that it
would have, in what torch makes of a real storage: its numbers, and its errors. What is
resized, as sharded training does it, takes other memory from then on.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, TypedStorage, UntypedStorage

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.tensors import TensorRegistry
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


class ReadStorages(Replacements):
    """Read storages on meta, and hear of their sizes, in the block and its thread.

    Args:
        registry: Knows storages.
        values: Knows what a tensor holds.
    """

    def __init__(self, registry: TensorRegistry, values: ValueSource) -> None:
        super().__init__()
        self._registry = registry
        self._values = values

    def __enter__(self) -> None:
        for owner, name in STORAGE_READERS:
            self.replace_here(owner, {name: self._read})
        self.replace_here(UntypedStorage, {"resize_": self._resize})

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
