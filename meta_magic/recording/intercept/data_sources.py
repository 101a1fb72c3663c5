"""Data that comes into a cell by ways that no mode sees, such as ``torch.load``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.saving import Saver
from meta_magic.torch_private.gpus import has_gpu
from meta_magic.torch_private.modes import DeviceContext, function_mode_stack
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes

__all__ = ["DataSources"]


class DataSources(Replacements):
    """Context manager that replaces the functions by which data comes into a cell.

    No mode and no hook of torch sees them, so the names themselves are replaced for as
    long as the cell runs. Calls from other threads behave as ever.

    Args:
        note: Takes the kind and the text of a note on the line that runs now.
        saver: Does what stands for ``torch.save``.
        plan: Knows where the code wants what.
    """

    def __init__(
        self, note: Callable[[str, str], None], saver: Saver, plan: DevicePlan
    ) -> None:
        super().__init__()
        self._plan = plan
        self._note = note
        self._saver = saver

    def __enter__(self) -> None:
        methods = {
            "load": self._load,
            "save": self._saver.save,
            "from_numpy": self._adopt,
            "frombuffer": self._adopt,
            "from_dlpack": self._adopt,
        }
        self.replace_here(torch, methods)
        self.replace_here(DataLoader, {"__iter__": self._iterate})

    def _load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Load onto meta, unless it is told where; what comes is from outside."""
        told = args[1] if len(args) > 1 else kwargs.get("map_location")
        is_moved = told is None and is_default_on_meta()
        planned = read_planned(told)
        if is_moved or planned is not None:
            place = "cpu" if planned else "meta"
            args, kwargs["map_location"] = args[:1], place
        with WithoutModes():
            loaded = plain(*args, **kwargs)
        if is_moved and holds_meta(loaded):
            self._note(
                "load",
                "torch.load read shapes and no data (see map_location='cpu', or the "
                "file as init= of meta_magic.materialize)",
            )
        return loaded if planned is None else self._put_at(loaded, planned)

    def _put_at(self, value: Any, device: torch.device) -> Any:
        """Return what was loaded, with its tensors on a device of the plan."""
        if isinstance(value, nn.Module):
            return value.to(device)
        if isinstance(value, torch.Tensor):
            moved = value.to(META)
            self._plan.name_all([moved], self._plan.read(device))
            return moved
        if isinstance(value, dict):  # in its place: it may be of a class of its own
            value.update({name: self._put_at(it, device) for name, it in value.items()})
        if type(value) in (list, tuple):
            return type(value)(self._put_at(item, device) for item in value)
        return value

    def _adopt(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Put on meta what torch makes from memory that is not its own."""
        made = plain(*args, **kwargs)
        return made.to(META) if is_default_on_meta() else made

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


def read_planned(told: object) -> torch.device | None:
    """Return where to load if that is a device that is not there, and so a plan."""
    if not isinstance(told, (str, torch.device)) or has_gpu():
        return None
    device = torch.device(told)
    return None if device.type in ("cpu", "meta") else device


def is_default_on_meta() -> bool:
    """Whether the innermost ``with torch.device`` is that of the cell."""
    for mode in reversed(function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return bool(mode.device.type == "meta")
    return False


def holds_meta(value: object) -> bool:
    """Whether a module, or tensors in lists and dictionaries, are on meta."""
    if isinstance(value, nn.Module):
        value = [*value.parameters(), *value.buffers()]
    return any(tensor.is_meta for tensor in tensors_in(value))
