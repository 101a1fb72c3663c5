"""Remember where a cell wants what is real: it moved a model, which is as it was again.

The next cell finds it there, as it would for real. Storages are held weakly.
"""

import weakref

import torch
from torch import Tensor, UntypedStorage

from meta_magic.torch_private.tensor_internals import address_of_storage

__all__ = ["find_left", "has_left", "leave"]

left: dict[int, tuple["weakref.ref[UntypedStorage]", torch.device]] = {}


def leave(real: Tensor, place: torch.device | None) -> None:
    """Note on which device a cell left a real tensor; None if on its own."""
    for address in [at for at, (ref, _) in left.items() if ref() is None]:
        del left[address]
    storage = real.untyped_storage()
    if place in (None, real.device):
        left.pop(address_of_storage(storage), None)
    else:
        left[address_of_storage(storage)] = weakref.ref(storage), place


def has_left() -> bool:
    """Whether a cell left any real tensor on another device than its own."""
    return bool(left)


def find_left(real: Tensor) -> torch.device:
    """Return the device on which a cell left a real tensor; its own if none did."""
    if left and real.layout is torch.strided:
        storage = real.untyped_storage()
        ref, place = left.get(address_of_storage(storage), (None, None))
        if ref is not None and ref() is storage and place is not None:
            return place
    return real.device
