"""Keep the planned device of each tensor; the tensor itself stays on meta.

``x.to("cuda")`` runs on a laptop, and ``x.device`` then answers ``cuda:0``. A placement
belongs to a storage, as a device does in torch: views share it, and after
``p.data = moved`` the same parameter has another placement. Read :class:`DevicePlan`
first.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.call_sites import (
    PACKAGE,
    TORCH,
    TORCH_FILES,
    CallSites,
    TakeNote,
)
from meta_magic.recording.identities.storages import NamedDevices
from meta_magic.recording.identities.tensors import TensorRegistry, tensors_in
from meta_magic.torch_private.modes import (
    DeviceContext,
    DisableTorchFunction,
    function_mode_stack,
)
from meta_magic.torch_private.tensor_internals import address_of_storage, list_parts
from meta_magic.trace.options import DeviceName, Options
from meta_magic.trace.signature import CPU, META

kept_placements: dict[int, tuple["weakref.ref[UntypedStorage]", torch.device]] = {}


def carry_placement(real: Tensor, device: torch.device | None) -> None:
    """Carry over the device that a cell moved a real tensor to; None for its own."""
    for address in [at for at, (ref, _) in kept_placements.items() if ref() is None]:
        del kept_placements[address]
    storage = real.untyped_storage()
    if device in (None, real.device):
        kept_placements.pop(address_of_storage(storage), None)
    else:
        kept_placements[address_of_storage(storage)] = weakref.ref(storage), device


def has_carried_placement() -> bool:
    """Whether any real tensor is planned on another device than its own."""
    return bool(kept_placements)


def find_placement(real: Tensor) -> torch.device:
    """Return the device that a cell moved a real tensor to; else its own."""
    if kept_placements and real.layout is torch.strided:
        storage = real.untyped_storage()
        ref, device = kept_placements.get(address_of_storage(storage), (None, None))
        if ref is not None and ref() is storage and device is not None:
            return device
    return real.device


HOMES: Final = {
    "cpu": torch.device("cpu"),
    "cuda": torch.device("cuda", 0),
    "meta": META,
}
"""By the device whose kernels are recorded, the device of a tensor for which the code
names none. ``x.device`` returns these very objects: see :func:`is_home`."""

AS_CUDA: Final = "what the code puts on {} is recorded with the kernels of CUDA"

HOME_IDS: Final = frozenset(map(id, HOMES.values()))


class DevicePlan:
    """The devices that the code of one recording names, and which tensors are there.

    Attributes:
        wanted: Planned device of the tensor that a factory is making: ``META`` where
            the code names none; None where no factory runs.
        current: Index of the accelerator that ``"cuda"`` means.
        is_real: Whether tensors are really made on the devices that the code names.
        device_count: What ``torch.cuda.device_count()`` returns.
        find_derived: Returns the storages on meta by name, or computed from such.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        sites: CallSites,
        options: Options,
        note: TakeNote,
    ) -> None:
        self.wanted: torch.device | None = None
        self.default: torch.device | None = None
        self.current = 0
        self.is_real = options.named == "real"
        self.n_accelerators = options.n_devices
        self.in_world = options.world is not None
        per_node = 1 if options.world is None else options.world.per_node
        self.device_count = options.n_devices or per_node
        self.kernels = options.device
        self.find_derived: Callable[[], set[int]] = set
        self._note = note
        self._home = HOMES[options.device]
        self._registry = registry
        self._sites = sites

    def read(self, device: Any) -> torch.device:
        """Return a device with its index, as a tensor would have it."""
        number = type(device) is int
        device = torch.device("cuda", device) if number else torch.device(device)
        if device.type == "meta":
            return META
        NamedDevices.exist = True
        if device.type == "cpu":
            return torch.device("cpu")
        if device.type != "cuda" and self.kernels != "meta":
            self._note("place", AS_CUDA.format(device.type))
        index = self.current if device.index is None else device.index
        if self.n_accelerators is not None and index >= self.n_accelerators:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: {device} of "
                f"{self.n_accelerators} (see --as cuda:N)"
            )
        return torch.device(device.type, index)

    def placement_of(self, tensor: Tensor) -> torch.device | None:
        """Return the planned device of a tensor; else a real one's own device."""
        with DisableTorchFunction():
            if not tensor.is_meta:
                return find_placement(tensor)
            if not NamedDevices.exist:
                return None
            self._registry.note_deaths()
            return self._registry.placement_of(tensor)

    def is_on_meta(self, tensor: Tensor) -> bool:
        """Whether a tensor is on meta by name, or computed from one that is."""
        registry = self._registry
        if not registry.has_on_meta:
            return False
        with DisableTorchFunction():
            registry.note_deaths()
            storage = registry.find_storage(tensor)
            if storage is None or registry.is_storage_on_meta(storage):
                return storage is not None
            return storage in self.find_derived()

    def placement_of_made(self) -> torch.device | None:
        """Return the device on which the running factory makes its tensor."""
        wanted = self.wanted
        if wanted is not None:
            return None if wanted == META else wanted
        running = self._sites.running
        given = () if running is None else tensors_in(running.args)
        parts = (part for tensor in given for part in list_parts(tensor))
        return next(map(self.placement_of, parts), None)

    def set_placements(self, made: Iterable[Tensor], device: torch.device) -> None:
        """Set the placement of tensors that a function made without an operator."""
        placement = None if device == META else device
        for tensor in made:
            with DisableTorchFunction():
                if tensor.is_meta:
                    self._registry.note_deaths()
                    self._registry.set_placement(tensor, placement)

    @property
    def home(self) -> torch.device:
        """Device of a tensor for which the code named none."""
        return self.default or self._home

    def kernels_at(self, device: torch.device | None) -> DeviceName:
        """Return whose kernels run on a device; the cell's own if it is None."""
        if device is None or self.kernels == "meta":
            return self.kernels
        return "cpu" if device.type == "cpu" else "cuda"

    def kernels_of(self, values: object) -> DeviceName:
        """Return whose kernels run on the first tensor that has a planned device."""
        with DisableTorchFunction():
            metas = [tensor for tensor in tensors_in(values) if tensor.is_meta]
        placed = (self.placement_of(tensor) for tensor in metas)
        return self.kernels_at(next((p for p in placed if p is not None), None))

    @property
    def is_for_cuda(self) -> bool:
        """Whether a GPU is planned, or this machine has one and nothing is planned."""
        return self.kernels == "cuda" or self.n_accelerators is not None

    def count_bytes(self, index: int) -> int:
        """Return how many bytes the live tensors take on a GPU."""
        device = torch.device("cuda", index)
        here = [ref() for ref in self._registry.live() if ref.placement == device]
        return sum(storage.nbytes() for storage in here if storage is not None)


def is_home(device: object) -> bool:
    """Whether a device object is ``x.device`` where the code named no device.

    ``torch.device("meta")`` in the code is equal to it, and a different object.
    """
    return id(device) in HOME_IDS


def is_default_on_meta() -> bool:
    """Whether the innermost ``with torch.device`` is that of the cell."""
    return find_default() == "meta"


def find_default() -> str | None:
    """Return the kind of device of the innermost ``with torch.device``, if any."""
    for mode in reversed(function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return "meta" if is_home(mode.device) else str(mode.device.type)
    return None


# How to read the device that the code gives to a factory

REAL_FACTORY_FILES: Final = frozenset(
    str(TORCH / "utils" / "data" / name)
    for name in ("dataloader.py", "sampler.py", "dataset.py")
)
"""Files whose factories draw seeds and permutations that Python must read."""

MEANT_FILES: Final = tuple(
    str(TORCH / name) for name in ("_utils.py", "storage.py", "serialization.py")
)
"""Files of torch whose factories must make real tensors."""

WRITTEN: Final = sys.intern("meta")
"""The string object of literals in source code. ``str(x.device)`` is another object; it
means the device of the cell."""

CONTEXT: Final = DeviceContext.__torch_function__.__code__
"""The code of torch's mode that passes calls on under ``with torch.device(...)``."""


def is_meta_by_name(device: object, caller: FrameType) -> bool:
    """Whether a factory was given meta, by its argument or by ``with torch.device``."""
    if device is WRITTEN:
        return True
    return caller.f_code is CONTEXT and read_context(caller) == META


def is_in_cpu_context(caller: FrameType) -> bool:
    """Whether a call is within ``with torch.device("cpu")``: its tensors are real."""
    return caller.f_code is CONTEXT and read_context(caller) == CPU


def read_context(caller: FrameType) -> torch.device | None:
    """Return the device that ``with torch.device(...)`` names by itself, if any."""
    device: torch.device = caller.f_locals["self"].device
    return None if is_home(device) else device


def must_be_real(
    plan: DevicePlan, device: torch.device, given: object, caller: FrameType
) -> bool:
    """Whether a factory must really use a device, and not only plan it."""
    file = caller.f_code.co_filename
    if file.startswith(PACKAGE) or file in REAL_FACTORY_FILES:
        return True
    if plan.is_real and device != META:
        return True
    is_literal = type(given) is str and given == "cpu"
    is_literal &= "cpu" in caller.f_code.co_consts  # a literal there, not passed on
    if file.startswith(TORCH_FILES):
        if file in MEANT_FILES:
            return True
        if is_literal and not any(v is given for v in caller.f_locals.values()):
            return True
    return is_in_cpu_context(caller) and device.type == "cpu"
