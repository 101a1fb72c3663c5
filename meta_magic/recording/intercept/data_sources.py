"""Data that comes into a cell by ways that no mode sees, such as ``torch.load``."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, serialization
from torch.utils.data import DataLoader

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.device_plan import META, is_default_on_meta
from meta_magic.recording.intercept.copies import find_copied, is_copying
from meta_magic.recording.intercept.libraries import FIND_WRITERS
from meta_magic.recording.intercept.loading import Loader
from meta_magic.recording.intercept.real_tensors.captured_constants import Lifting
from meta_magic.recording.intercept.saving import Saver, is_on_meta
from meta_magic.recording.intercept.script_saving import ScriptSaver
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.intercept.transforms import make_below
from meta_magic.torch_private.modes import DisableTorchDispatch
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import (
    REBUILD,
    REDUCE,
    type_storage,
    untyped_of,
)

__all__ = ["DataSources"]

SCRIPTED: Final[Any] = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]  # not in its __all__

PICKLED: Final = "pickle wrote tensors with the values that they would have, on the CPU"


class DataSources(Replacements):
    """Context manager that replaces the functions by which data comes into a cell.

    No mode and no hook of torch sees them, so the names themselves are replaced for as
    long as the cell runs. Calls from other threads behave as ever.

    Args:
        note: Takes the kind and the text of a note on the line that runs now.
        saver: Does what stands for ``torch.save``.
        loader: Does what stands for ``torch.load``.
        shared: Keeps arrays and tensors alike that share memory.
        lifting: Makes constants of what is unpickled.
    """

    def __init__(
        self,
        note: Callable[[str, str], None],
        saver: Saver,
        loader: Loader,
        shared: SharedMemory,
        lifting: Lifting,
    ) -> None:
        super().__init__()
        self._lifting = lifting
        self._loader = loader
        self._note = note
        self._saver = saver
        self._scripts = ScriptSaver(saver)
        self._shared = shared

    def __enter__(self) -> None:
        methods = {
            "load": self._load,
            "save": self._saver.save,
            "from_numpy": self._adopt,
            "frombuffer": self._adopt,
        }
        self.replace_here(torch, methods)
        for (owner, name), method in (
            (REDUCE, self._reduce),
            (REBUILD, self._rebuild),
        ):
            self.replace_here(owner, {name: method})
        for module in (torch, torch.utils.dlpack):
            packing = {"from_dlpack": self._adopt, "to_dlpack": self._export}
            self.replace_here(module, packing)
        scripts = {"save": self._scripts.save, "save_to_buffer": self._scripts.save}
        self.replace_here(SCRIPTED, scripts)
        for found in filter(None, (find() for find in FIND_WRITERS)):
            self.replace_here(found[0], dict.fromkeys(found[1], self._saver.lay_out))
        self.replace_here(DataLoader, {"__iter__": self._iterate})
        restore = {"default_restore_location": self._loader.restore}
        self.replace_here(serialization, restore)

    def _load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        load = self._loader.load if is_default_on_meta() else load_for_real
        return load(plain, *args, **kwargs)

    def _adopt(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Put on meta what torch makes from memory that is not its own."""
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
            planned = real.to(META)
            if isinstance(data, np.ndarray):
                with DisableTorchDispatch():  # in which torch is told to put it on meta
                    planned = self._shared.adopt(data, plain(*args, **kwargs), planned)
            return planned

        return make_below(adopt, args)

    def _export(self, plain: Any, tensor: Any) -> Any:
        """Give out the memory of a tensor in a capsule."""
        is_planned = is_default_on_meta() and is_on_meta(tensor)
        give = self._shared.give
        return give(plain, (tensor,), {}) if is_planned else plain(tensor)

    def _reduce(self, plain: Any, tensor: Tensor, protocol: int) -> Any:
        """Return what a tensor is pickled as: with its values, if they can be had."""
        if is_on_meta(tensor) and not is_copying(sys._getframe(1)):
            with contextlib.suppress(MissingValueError):
                (tensor,) = self._saver.compute([tensor])
                self._note("save", PICKLED)
        return plain(tensor, protocol)

    def _rebuild(self, plain: Any, storage: Any, *geometry: Any) -> Any:
        """Put on meta what is unpickled: its values are constants."""
        if is_default_on_meta() and find_copied(sys._getframe(1)) is None:
            planned = self._lifting.lift_storage(untyped_of(storage))
            storage = type_storage(planned, storage.dtype)
        return plain(storage, *geometry)

    def _iterate(self, plain: Any, loader: Any) -> Any:
        """Load in this process: what other processes do is not recorded."""
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


def load_for_real(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``torch.load`` with no mode on."""
    with WithoutModes():
        return plain(*args, **kwargs)
