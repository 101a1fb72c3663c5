"""Put tensors from files and arrays on meta, and keep their values.

``torch.load``, ``torch.from_numpy`` and memory-mapped files make tensors that no mode
of torch sees. Without this file they would be real tensors among those on meta.
``torch.load`` asks for the device of each storage, so ``map_location`` holds.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch
from torch import Tensor, nn, serialization
from torch.utils.data import DataLoader

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.device_plan import META, is_default_on_meta
from meta_magic.recording.identities.nested_tensors import tensors_of
from meta_magic.recording.intercept.copies import find_copied, is_copying
from meta_magic.recording.intercept.higher_order import make_below
from meta_magic.recording.intercept.libraries import FIND_WRITERS
from meta_magic.recording.intercept.real_tensors.borrowed_modules import BorrowedModules
from meta_magic.recording.intercept.real_tensors.capturable import find_address
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.saving import Saver, is_on_meta
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.rows.written import OfRecording, Written
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import (
    REBUILD,
    REDUCE,
    address_of_storage,
    type_storage,
    untyped_of,
)

SCRIPTED: Final[Any] = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]  # not in its __all__

PICKLED: Final = "pickle wrote tensors with the values that they would have, on the CPU"


class DataSources(OfRecording):
    """Context manager that replaces the functions by which data comes into a cell.

    No mode and no hook of torch sees them, so the names themselves are replaced for as
    long as the cell runs. Calls from other threads are not changed.
    """

    def __init__(
        self,
        write: Written,
        saver: Saver,
        loader: "Loader",
        shared: SharedMemory,
        capture: ConstantCapture,
    ) -> None:
        super().__init__(write)
        self._capture = capture
        self._loader = loader
        self._saver = saver
        self._shared = shared

    def __enter__(self) -> None:
        methods = {
            "load": self._load,
            "save": self._saver.save,
            "from_numpy": self._adopt,
            "frombuffer": self._adopt,
        }
        self.replace_here(torch, methods)
        for (owner, name), method in ((REDUCE, self._reduce), (REBUILD, self._rebuild)):
            self.replace_here(owner, {name: method})
        for module in (torch, torch.utils.dlpack):
            packing = {"from_dlpack": self._adopt, "to_dlpack": self._export}
            self.replace_here(module, packing)
        names = "save", "save_to_buffer"
        self.replace_here(SCRIPTED, dict.fromkeys(names, self._saver.save_script))
        for found in filter(None, (find() for find in FIND_WRITERS)):
            module, lay_out, write = found
            self.replace_here(module, dict.fromkeys(lay_out, self._saver.lay_out))
            self.replace_here(module, dict.fromkeys(write, self._saver.write_laid_out))
        self.replace_here(DataLoader, {"__iter__": self._iterate})
        restore = {"default_restore_location": self._loader.restore}
        self.replace_here(serialization, restore)

    def _load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if is_default_on_meta():
            return self._loader.load(plain, *args, **kwargs)
        with WithoutModes():
            return plain(*args, **kwargs)

    def _adopt(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Put tensors on meta that torch makes from foreign memory."""
        data = args[0] if args else None
        if not is_default_on_meta():
            return plain(*args, **kwargs)
        if isinstance(data, Tensor) and data.is_meta:  # by from_dlpack
            return self._shared.share_again(data)

        def adopt(*args: Any) -> Tensor:
            real: Tensor = plain(*args, **kwargs)
            planned = self._shared.find_planned(real)
            if planned is not None:
                return planned
            with DisableTorchFunction():  # it is made here, not moved from the CPU
                planned = real.to(META)
            if isinstance(data, np.ndarray):
                with DisableTorchDispatch():  # which would put it on meta
                    planned = self._shared.adopt(data, plain(*args, **kwargs), planned)
            return planned

        return make_below(adopt, args)

    def _export(self, plain: Any, tensor: Any) -> Any:
        """Export the memory of a tensor as a DLPack capsule."""
        is_planned = is_default_on_meta() and is_on_meta(tensor)
        give = self._shared.give
        return give(plain, (tensor,), {}) if is_planned else plain(tensor)

    def _reduce(self, plain: Any, tensor: Tensor, protocol: int) -> Any:
        """Return how a tensor is pickled: with its values, if they can be computed."""
        if is_on_meta(tensor) and not is_copying(sys._getframe(1)):
            with contextlib.suppress(MissingValueError):
                (tensor,) = self._saver.compute([tensor])
                self._note("save", PICKLED)
        return plain(tensor, protocol)

    def _rebuild(self, plain: Any, storage: Any, *geometry: Any) -> Any:
        """Put an unpickled tensor on meta: its values are constants."""
        if is_default_on_meta() and find_copied(sys._getframe(1)) is None:
            planned = self._capture.capture_storage(untyped_of(storage))
            storage = type_storage(planned, storage.dtype)
        return plain(storage, *geometry)

    def _iterate(self, plain: Any, loader: Any) -> Any:
        """Load in this process: other processes are not recorded."""
        n_workers, timeout = loader.num_workers, loader.timeout
        if not n_workers:
            return plain(loader)
        self._note(
            "workers",
            "DataLoader loaded in this process, so that it is recorded, not with "
            f"num_workers={n_workers} (see num_workers=0)",
        )
        loader.num_workers = loader.timeout = 0
        try:
            return plain(loader)
        finally:
            loader.num_workers, loader.timeout = n_workers, timeout


UNREAD: Final = (
    "torch.load read shapes and no data, as the file is larger than the free memory "
    "(see the file as init= of meta_magic.materialize)"
)


class Loader:
    """Loads files onto meta."""

    def __init__(self, write: Written, borrowed: BorrowedModules) -> None:
        self._note, self._plan = write.note, write.plan
        self._borrowed = borrowed
        self._placement_by_address: dict[int | None, torch.device] | None = None

    def load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``torch.load`` where a factory would build on meta.

        With ``map_location="cpu"`` tensors stay real, except those of modules.
        """
        location = args[1] if len(args) > 1 else kwargs.get("map_location")
        if location is None and is_too_large(args[0] if args else kwargs.get("f")):
            args, kwargs["map_location"] = args[:1], "meta"
            self._note("load", UNREAD)
        placements = self._placement_by_address = {}
        try:
            with WithoutModes():
                loaded = plain(*args, **kwargs)
        finally:
            self._placement_by_address = None
        with DisableTorchFunction():
            for tensor, is_of_module in find_tensors(loaded):
                placement = placements.get(find_address(tensor))
                if placement is None and (location is None or is_of_module):
                    placement = META if location is None else tensor.device
                if placement is not None:
                    self._borrowed.move_for_good(tensor, placement)
        return loaded

    def restore(self, plain: Any, storage: Any, location: str) -> Any:
        """Return a file's storage for a location, and note its planned device."""
        placements, kind = self._placement_by_address, location.partition(":")[0]
        if placements is None or kind in ("cpu", "meta") or self._plan.is_real:
            return plain(storage, location)
        placements[address_of_storage(storage)] = self._plan.read(location)
        return storage


def is_too_large(file: object) -> bool:
    """Whether a file is larger than the free memory."""
    path = Path(file) if isinstance(file, (str, os.PathLike)) else None
    if path is None or not path.exists():
        return False
    return path.stat().st_size > psutil.virtual_memory().available


def find_tensors(value: object) -> Iterator[tuple[Tensor, bool]]:
    """Yield the tensors in a loaded object, and whether each belongs to a module."""
    if isinstance(value, Tensor):
        yield value, False
    elif isinstance(value, nn.Module):
        for tensor in tensors_of(value):
            yield tensor, True
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from find_tensors(item)
