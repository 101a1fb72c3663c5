"""Types of ``torch.cuda`` for a planned GPU, and types of tensors.

Without this ``torch.cuda.Event()`` or ``isinstance(x, torch.cuda.FloatTensor)`` in a
cell would ask for a GPU. Also, torch says of no meta tensor that it is a
``torch.ByteTensor``, which torchvision asks of images.
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.moves import DTYPES
from meta_magic.recording.rows.written import OfRecording, Written

plans_by_thread: defaultdict[int, list[DevicePlan]] = defaultdict(list)
"""The types below are made once for all recordings, and find the current plan here."""


def find_plan() -> DevicePlan | None:
    """Return the current plan of this thread, or None if nothing is recorded."""
    found = plans_by_thread.get(threading.get_ident())
    return found[-1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """Properties of the planned GPU, the one whose attention is recorded.

    Source:
        ``torch.cuda.get_device_properties`` on an H100 with 80 GB.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    major: int = 9
    minor: int = 0
    total_memory: int = 85_029_158_912
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65_536
    shared_memory_per_block: int = 49_152
    shared_memory_per_block_optin: int = 232_448
    shared_memory_per_multiprocessor: int = 233_472
    L2_cache_size: int = 52_428_800
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


def do_nothing(*_: Any, **__: Any) -> None:
    """Replace a function that only acts on a GPU, or waits for it."""


class Event:
    """An event; the time between two events is the time of the recording."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter()

    def record(self, stream: Any = None) -> None:  # noqa: ARG002  torch's own
        """Keep the time."""
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        """Return milliseconds until another event."""
        return (end.seconds - self.seconds) * 1000

    def query(self) -> bool:
        """Return True: nothing runs besides the cell."""
        return True

    synchronize = wait = do_nothing


class Stream(torch.Stream):
    """A stream; everything on it is done at once."""

    def __new__(cls, device: Any = None, *_: Any, **__: Any) -> Self:
        """Make a stream by its number, for which torch needs no GPU."""
        is_number = type(device) is int
        index = device if is_number else torch.device(device or "cuda").index
        made: Any = super().__new__
        stream: Self = made(cls, stream_id=0, device_index=index or 0, device_type=1)
        return stream

    def __init__(self, _: Any = None, priority: int = 0, **__: Any) -> None:
        self.priority = priority
        self.cuda_stream = 0

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    synchronize = wait_event = wait_stream = do_nothing

    def is_capturing(self) -> bool:
        """Whether a graph is captured."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """Return an event that is recorded now."""
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class device:  # noqa: N801  as torch names it
    """Makes another GPU the current one, within the block."""

    def __init__(self, device: Any) -> None:
        self._plan = find_plan()
        self.idx = -1 if self._plan is None else find_index(self._plan, device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self._plan is not None:
            self.prev_idx, self._plan.current = self._plan.current, self.idx

    def __exit__(self, *_: object) -> None:
        if self._plan is not None:
            self._plan.current = self.prev_idx


class device_of(device):  # noqa: N801  as torch names it
    """Makes the GPU of a tensor the current one, within the block."""

    def __init__(self, obj: Any) -> None:
        device = obj.device
        super().__init__(device if device.type == "cuda" else None)


class StreamContext:
    """Replaces ``torch.cuda.StreamContext``, and does nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


TYPES: Final = {
    kind.__name__: kind for kind in (Event, Stream, StreamContext, device, device_of)
}
"""Replacements of types of ``torch.cuda`` by their names."""


def find_index(plan: DevicePlan, device: Any) -> int:
    """Return the index of a named GPU; of the current GPU if none is named."""
    if device is None or (type(device) is int and device < 0):
        return plan.current
    index: int | None = plan.read(device).index
    return plan.current if index is None else index


class TensorKind(type):
    """Type of types of tensors, which make tensors and know their instances."""

    plain: Any
    dtype: torch.dtype
    is_cuda: bool

    def __call__(cls, *args: Any) -> Tensor:
        """Make a tensor of this type."""
        is_copy = len(args) == 1 and type(args[0]) is Tensor and args[0].is_meta
        is_alias = is_copy and args[0].dtype is cls.dtype
        made: Tensor = args[0].as_subclass(Tensor) if is_alias else cls.plain(*args)
        plan = find_plan()
        if cls.is_cuda and plan is not None:
            plan.set_placements([made], plan.read("cuda"))
        return made

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, Tensor) or value.dtype is not cls.dtype:
            return False
        plan = find_plan()
        if plan is None:
            return value.is_cuda if cls.is_cuda else isinstance(value, cls.plain)
        placement = plan.placement_of(value)
        kind = "cpu" if placement is None else placement.type
        return kind == ("cuda" if cls.is_cuda else "cpu")


def make_kinds(home: Any) -> dict[str, TensorKind]:
    """Return types of tensors of ``torch`` or ``torch.cuda`` by their names."""
    kinds = {}
    for stem, dtype in DTYPES.items():
        name = f"{stem}Tensor"
        known = {"plain": getattr(torch, name), "dtype": dtype}
        own = {"is_cuda": home is torch.cuda, "__module__": home.__name__}
        kinds[name] = TensorKind(name, (), {**known, **own})
    return kinds


KINDS: Final = {home: make_kinds(home) for home in (torch, torch.cuda)}


class PlannedTypes(OfRecording):
    """Replaces ``torch.cuda.FloatTensor`` and its like, within the block.

    Its plan is the current one of this thread.
    """

    def __init__(self, write: Written) -> None:
        super().__init__(write)
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        plans_by_thread[self._thread].append(self._plan)
        if self._plan.is_real:
            return
        for home, kinds in KINDS.items():
            self.replace_all(home, kinds)

    def __exit__(self, *_: object) -> None:
        plans_by_thread[self._thread].remove(self._plan)
        if not plans_by_thread[self._thread]:
            del plans_by_thread[self._thread]
        self.restore()
