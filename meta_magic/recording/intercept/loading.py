"""``torch.load`` in a cell: what a file holds is on meta, and its values are known.

Torch asks for each storage where it is to lie: the first place to hear what the file,
``map_location`` or the default device says. One for a device that is not there stays
on the CPU until the tensors on it are known.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import Tensor, nn

from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.identities.nested_tensors import tensors_of
from meta_magic.recording.intercept.real_tensors.borrowed_modules import Lending
from meta_magic.recording.intercept.real_tensors.real_names import find_address
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import address_of_storage

__all__ = ["Loader"]

UNREAD: Final = (
    "torch.load read shapes and no data, as the file is larger than the free memory "
    "(see the file as init= of meta_magic.materialize)"
)


class Loader:
    """Loads files onto meta.

    Args:
        note: Takes the kind and the text of a note on the line that runs now.
        plan: Knows where the code wants what.
        lending: Puts real tensors on meta.
    """

    def __init__(
        self, note: Callable[[str, str], None], plan: DevicePlan, lending: Lending
    ) -> None:
        self._note = note
        self._plan = plan
        self._lending = lending
        self._place_by_address: dict[int | None, torch.device] | None = None

    def load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``torch.load`` where a factory would build on meta.

        What it is told to load onto the CPU stays real, but for modules.
        """
        told = args[1] if len(args) > 1 else kwargs.get("map_location")
        if told is None and is_too_large(args[0] if args else kwargs.get("f")):
            args, kwargs["map_location"] = args[:1], "meta"
            self._note("load", UNREAD)
        places = self._place_by_address = {}
        try:
            with WithoutModes():
                loaded = plain(*args, **kwargs)
        finally:
            self._place_by_address = None
        with DisableTorchFunction():
            for tensor, is_of_module in find_tensors(loaded):
                place = places.get(find_address(tensor))
                if place is None and (told is None or is_of_module):
                    place = META if told is None else tensor.device
                if place is not None:
                    self._lending.keep(tensor, place)
        return loaded

    def restore(self, plain: Any, storage: Any, location: str) -> Any:
        """Say where a storage of a file goes that is to lie at a location."""
        places, kind = self._place_by_address, location.partition(":")[0]
        is_there = kind in ("cpu", "meta") or has_gpu()
        if places is None or is_there or self._plan.is_real:
            return plain(storage, location)
        places[address_of_storage(storage)] = self._plan.read(location)
        return storage


def is_too_large(file: object) -> bool:
    """Whether a file holds more than there is free memory."""
    path = Path(file) if isinstance(file, (str, os.PathLike)) else None
    if path is None or not path.exists():
        return False
    return path.stat().st_size > psutil.virtual_memory().available


def find_tensors(value: object) -> Iterator[tuple[Tensor, bool]]:
    """Yield the tensors in what was loaded, and whether each belongs to a module."""
    if isinstance(value, Tensor):
        yield value, False
    elif isinstance(value, nn.Module):
        for tensor in tensors_of(value):
            yield tensor, True
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from find_tensors(item)
