"""Types of ``torch.cuda`` for a planned GPU, and types of tensors.

Without this ``torch.cuda.Event()`` or ``isinstance(x, torch.cuda.FloatTensor)`` in a
cell would ask for a GPU.

``torch.Generator("cuda")`` draws on the CPU. Nothing is drawn while a cell runs, so a
generator's state only holds a token, the number of a draw, which is all that
``fork_rng`` and checkpointing need. When the user's code may print or save the state,
:class:`GeneratorStates` makes the draws, and ``get_state()`` returns the state of a
real run. A state that a cell loads from a file is on meta; ``set_state`` gets its
values.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.generator_carryover import (
    is_named,
    is_on_cpu,
    name_generator,
    planned_device_of,
)
from meta_magic.recording.intercept.moves import DTYPES
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replacing import (
    GENERATOR,
    Methods,
    Replaceable,
    Replacements,
)
from meta_magic.torch_private.snapshot import has_gpu
from meta_magic.trace.program import ELSEWHERE

plans_by_thread: defaultdict[int, list[DevicePlan]] = defaultdict(list)
"""The types below are made once for all recordings, and find the current plan here."""


def find_plan() -> DevicePlan | None:
    """Return the current plan of this thread, or None if nothing is recorded."""
    found = plans_by_thread.get(threading.get_ident())
    return found[-1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """Properties of an H100, which every planned GPU is taken to be.

    Source: ``torch.cuda.get_device_properties`` on an H100 with 80 GB.
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
    """Metaclass of ``torch.FloatTensor``, which is called, and asked ``isinstance``."""

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


class PlannedTypes(RecordingReplacements):
    """Replaces ``torch.cuda.FloatTensor`` and its like, within the block."""

    def __init__(self, write: Writers) -> None:
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


PLAIN = torch.Generator


class GeneratorKind(type(torch.Generator)):  # type: ignore[misc]  # torch has one of its own
    """Makes every generator an instance of the replacement of ``torch.Generator``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, PLAIN)


class Generator(torch.Generator, metaclass=GeneratorKind):
    """A generator; for a planned device a generator of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make torch's own generator, or one of this class for a planned device.

        Torch's own if possible: for another class C++ asks Python for the type, and an
        interrupt at that moment would count as the answer.
        """
        plan = find_plan()
        device = torch.device(device) if plan is None else plan.read(device)
        is_cuda = device.type == "cuda" and has_gpu()
        if is_cuda and device.index < torch.cuda.device_count():
            return PLAIN(device)
        if device.type in ("cpu", "meta"):
            return PLAIN("cpu")
        make: Any = super().__new__
        made = make(cls, "cpu")
        name_generator(made, device)
        return made

    __module__ = "torch"

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch has an attribute
        """The planned device."""
        return planned_device_of(self)


KIND_BY_SEEDING: Final[dict[Replaceable, str]] = {
    (torch.cuda, "manual_seed_all"): "cuda",
    (torch.xpu, "manual_seed_all"): "xpu",
    (torch.mps, "manual_seed"): "mps",
    (torch.mtia, "manual_seed_all"): "mtia",
}
"""Functions that ``torch.manual_seed`` calls, and the kinds of device they seed."""


class PlannedGenerators(RecordingReplacements):
    """Makes generators accept planned devices, and ``manual_seed`` seed these."""

    def __enter__(self) -> None:
        if not self._plan.is_real:
            self.replace(torch, "Generator", Generator)
            for (owner, name), kind in KIND_BY_SEEDING.items():
                self.replace_here(owner, {name: partial(self._seed, kind)})

    def _seed(self, kind: str, plain: Callable[[int], None], seed: int) -> None:
        plain(seed)
        self._write.draws.seed_elsewhere(kind, int(seed))


class PlannedSeeds:
    """Replacements of ``torch.cuda.manual_seed`` and its like."""

    def __init__(self, write: Writers) -> None:
        self._plan, self._draws = write.plan, write.draws

    def list_replacements(self) -> dict[str, Callable[..., Any]]:
        """Return the replacement of each function by its name."""
        return {
            "manual_seed": self._seed,
            "manual_seed_all": do_nothing,
            "initial_seed": lambda: self._find().initial_seed() ^ ELSEWHERE,
            "get_rng_state": self._get,
            "set_rng_state": self._set,
            "get_rng_state_all": lambda: [
                self._get(i) for i in range(self._plan.n_accelerators or 1)
            ],
            "set_rng_state_all": self._set_all,
        }

    def _read(self, device: Any = None) -> torch.device:
        is_named = device not in ("cuda", None)
        index = find_index(self._plan, device if is_named else None)
        return torch.device("cuda", index)

    def _find(self, device: Any = None) -> torch.Generator:
        return self._draws.generator_at(self._read(device))

    def _seed(self, seed: int) -> None:
        self._draws.seed_at(self._read(), int(seed))

    def _get(self, device: Any = None) -> Tensor:
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._find(device).get_state()

    def _set(self, state: Tensor, device: Any = None) -> None:
        with DisableTorchFunction(), DisableTorchDispatch():
            self._find(device).set_state(state)

    def _set_all(self, states: Iterable[Tensor]) -> None:
        for index, state in enumerate(states):
            self._set(state, index)


INNER: Final = frozenset({"torch", __name__.partition(".")[0]})
"""Packages that save and restore a state, and never read its bytes."""

GET_STATE: Final = torch.get_rng_state.__code__
HERE: Final = frozenset({__name__, Replacements.__module__})
"""Code, and modules, whose callers are asked instead."""

UNKNOWN: Final = (
    "torch.get_rng_state, or a generator's get_state, returned a state that can be set "
    "again, but whose bytes are not the CPU's: to make the draws before it takes too "
    "much (see --value-seconds)"
)


class GeneratorStates(RecordingReplacements):
    """Moves a generator to the state of the CPU's before its state is returned."""

    def __init__(
        self,
        write: Writers,
        values: ValueSource,
        compute: Callable[[list[Tensor], str], list[Tensor]],
    ) -> None:
        super().__init__(write)
        self._values = values
        self._compute = compute

    def __enter__(self) -> None:
        methods: Methods = {
            "get_state": self._get,
            "set_state": lambda plain, generator, state: plain(
                generator, self._make_real(state)
            ),
            "__reduce__": self._reduce,
            "__setstate__": lambda plain, generator, held: plain(
                generator, (*map(self._make_real, held),)
            ),
        }
        self.replace_here(GENERATOR, methods)

    def _get(
        self, plain: Callable[[torch.Generator], Tensor], generator: torch.Generator
    ) -> Tensor:
        frame: Any = sys._getframe(1)
        while frame.f_code is GET_STATE or frame.f_globals.get("__name__") in HERE:
            frame = frame.f_back
        caller = str(frame.f_globals.get("__name__"))
        if caller.partition(".")[0] not in INNER:
            self._advance(generator)
        return plain(generator)

    def _reduce(self, plain: Callable[..., Any], generator: torch.Generator) -> Any:
        self._advance(generator)
        return plain(generator)

    def _make_real(self, state: Any) -> Any:
        """Return a state that is real: of a state on meta, its values."""
        if isinstance(state, Tensor) and state.is_meta:
            (state,) = self._compute([state], "the state of a generator")
        return state

    def _advance(self, generator: torch.Generator) -> None:
        if is_named(generator) or not is_on_cpu(generator):
            return
        if not self._write.draws.settle(generator, self._values.state_at):
            self._note("draw", UNKNOWN)
            self._write.diagnostics.note_caveat(UNKNOWN)
