"""Memory over time: ``trace.memory``, the bytes alive after each call, and their use.

``measure_memory`` builds it. ``memory.as_allocated()`` estimates what torch's caching
allocator would count on a GPU: whole blocks, and the workspaces of cuBLAS. Workspaces
of cuDNN are not in it: cuDNN chooses their size, which is not documented.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.live_storages import LiveStorages, StorageTable, describe_live
from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.storage_categories import CATEGORIES, Category
from meta_magic.cost.storage_lives import Lives, add_up, find_lives
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.trace import Trace

BLOCK_NBYTES: Final = 512
"""The allocator rounds each storage up to a multiple of these bytes.

Source: ``kMinBlockSize`` in ``CUDACachingAllocator.h`` of torch 2.13.
"""

WORKSPACE_NBYTES: Final = 2 * 4096 * 1024 + 8 * 16 * 1024
LARGE_WORKSPACE_NBYTES: Final = 32 * 1024 * 1024
LARGE_WORKSPACES: Final = frozenset({9, 10, 12})
"""Bytes that cuBLAS gets for good when a thread first multiplies matrices, and the
major compute capabilities of the GPUs with the larger workspace.

Source: ``parseChosenWorkspaceSize`` and ``setWorkspaceForHandle`` in
``CublasHandlePool.cpp`` of torch 2.13, without ``CUBLAS_WORKSPACE_CONFIG``.
"""

PRODUCTS: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}
    | {"int_mm", "scaled_mm"}
)
"""Operators that run by cuBLAS, without underscores around their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The estimated bytes of torch's allocator on one GPU.

    Attributes:
        place: The GPU.
        live_nbytes: The allocated bytes right after each operator call.
        workspace_nbytes: The part of cuBLAS at the end: once for the thread of the
            program, and once for the thread of its backward passes.
    """

    place: str
    live_nbytes: tuple[int, ...] = field(repr=False)
    workspace_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        """Most bytes after any call; compare ``torch.cuda.max_memory_allocated()``."""
        return max(self.live_nbytes, default=0)

    def __str__(self) -> str:
        peak, known = map(format_bytes, (self.peak_nbytes, self.workspace_nbytes))
        return (
            f"{self.place}: {peak} at the peak, with workspaces of cuBLAS ({known} at "
            "the end); those of cuDNN are not counted, as their size is not documented"
        )


def count_workspaces(table: StorageTable, is_there: Flags) -> Integers:
    """Return the number of workspaces after each call, by which storages are there."""
    columns = table.columns
    names = [signature.op.split(".")[1] for signature in table.program.signatures]
    is_product = np.asarray([n.strip("_") in PRODUCTS for n in names], np.bool_)
    made = columns.is_made & is_there[columns.storage]
    is_run = np.zeros(columns.n_calls, np.bool_)
    is_run[columns.call[made]] = True
    is_run &= is_product[columns.signature]
    is_backward = columns.phase == PHASES.index("backward")
    threads = (is_run & is_backward, is_run & ~is_backward)
    counts = [np.logical_or.accumulate(runs).astype(np.int64) for runs in threads]
    return counts[0] + counts[1]


DEFAULT_DEVICE: Final = {"cpu": "cpu", "cuda": "cuda:0", "meta": "meta"}
"""The device of all storages if the code names none, by ``Program.as_device``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """The storages of a program over time.

    Bytes are those of storages, each counted once, on the device that the code names.
    Temporary memory of kernels and the rounding of an allocator are not included. A
    storage that is older than the recording counts from the first call that reads it.

    Attributes:
        table: The storages.
    """

    table: StorageTable = field(repr=False)

    @cached_property
    def live_nbytes(self) -> tuple[int, ...]:
        """The bytes that are alive right after each operator call."""
        return tuple(self._live.tolist())

    @cached_property
    def _live(self) -> Integers:
        return self._add_up(np.ones_like(self.table.lives.storage, np.bool_))

    @property
    def peak_index(self) -> int | None:
        """The first call after which most bytes are alive; None without calls."""
        return int(self._live.argmax()) if len(self._live) else None

    @property
    def peak_nbytes(self) -> int:
        """Most bytes that are alive after any call."""
        return int(self._live.max(initial=0))

    @cached_property
    def peak(self) -> LiveStorages:
        """The storages that are alive at the peak."""
        return self.at(self.peak_index)

    def at(self, index: int | None) -> LiveStorages:
        """Return the storages that are alive right after an operator call.

        Args:
            index: The call, counted from the end if negative.

        Raises:
            IndexError: There is no such call.
        """
        n_calls = self.table.columns.n_calls
        if index is not None and not -n_calls <= index < n_calls:
            raise IndexError(f"there is no operator {index} among {n_calls:,}")
        return describe_live(self.table, index if index is None else index % n_calls)

    @cached_property
    def live_by_category(self) -> Mapping[Category, tuple[int, ...]]:
        """``live_nbytes`` of each category."""
        return {name: tuple(live.tolist()) for name, live in self._categories()}

    @cached_property
    def live_by_place(self) -> Mapping[str, tuple[int, ...]]:
        """``live_nbytes`` of each device that has storages."""
        return {name: tuple(live.tolist()) for name, live in self._devices()}

    @cached_property
    def peak_by_place(self) -> Mapping[str, int]:
        """Most bytes alive on each device, each at its own time; the largest first."""
        peaks = {name: int(live.max(initial=0)) for name, live in self._devices()}
        return dict(sorted(peaks.items(), key=lambda item: -item[1]))

    def as_allocated(self, place: str | None = None, *, major: int = 8) -> Allocated:
        """Return the estimated bytes of torch's allocator on a GPU.

        Storages take whole blocks, and cuBLAS has workspaces. Workspaces of cuDNN are
        not counted, as their size is not documented, nor temporary memory of kernels.

        Args:
            place: The GPU, such as ``cuda:0``; None for the first one in the program.
            major: Its major compute capability, such as 9 for an H100.

        Raises:
            ValueError: No storage is there.
        """
        table = self.table
        gpus = [name for name in table.devices if name.startswith("cuda")]
        gpu = place or min(gpus, default="cuda")
        if gpu not in gpus:
            others = ", ".join(table.devices)
            raise ValueError(
                f"no tensor is on {gpu}, only on {others}: name a device in the code, "
                'or record it with as_device="cuda"'
            )
        columns, lives = table.columns, table.lives
        is_there = table.device == table.devices.index(gpu)
        blocks = -(-lives.nbytes // BLOCK_NBYTES) * BLOCK_NBYTES
        live = add_up(lives, columns.n_calls, is_there[lives.storage], blocks)
        large = major in LARGE_WORKSPACES
        nbytes = LARGE_WORKSPACE_NBYTES if large else WORKSPACE_NBYTES
        workspaces = nbytes * count_workspaces(table, is_there)
        return Allocated(
            place=gpu,
            live_nbytes=tuple((live + workspaces).tolist()),
            workspace_nbytes=int(workspaces.max(initial=0)),
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per operator call.

        Columns:
            op (str): The operator.
            phase (str): The phase of the program.
            live_nbytes (int, bytes): Bytes alive right after the call.
            parameter, buffer, gradient, optimizer_state, saved, temporary, input,
                output, unsharded (int, bytes): The part of one category.
            cpu, cuda:0, ... (int, bytes): The part on one device.
        """
        import pandas as pd  # noqa: PLC0415  0.3 s, on first use

        program, columns = self.table.program, self.table.columns
        ops = [signature.op for signature in program.signatures]
        first = {
            "op": np.asarray(ops, object)[columns.signature],
            "phase": np.asarray(PHASES)[columns.phase],
            "live_nbytes": self._live,
        }
        return pd.DataFrame(first).assign(
            **dict(self._categories()), **dict(self._devices())
        )

    def _categories(self) -> Iterator[tuple[Category, Integers]]:
        of_stretch = self.table.category[self.table.lives.storage]
        for number, name in enumerate(CATEGORIES):
            yield name, self._add_up(of_stretch == number)

    def _devices(self) -> Iterator[tuple[str, Integers]]:
        of_stretch = self.table.device[self.table.lives.storage]
        for number in sorted(set(of_stretch.tolist())):
            yield self.table.devices[number], self._add_up(of_stretch == number)

    def _add_up(self, is_chosen: Flags) -> Integers:
        return add_up(self.table.lives, self.table.columns.n_calls, is_chosen)

    def __repr__(self) -> str:
        where = ", ".join(
            f"{p} {format_bytes(n)}" for p, n in self.peak_by_place.items()
        )
        return f"<Memory: {where or 'nothing'} at peak>"


def measure_memory(trace: "Trace") -> Memory:
    """Return the memory of a recorded program over time."""
    program, columns = trace.program.with_raised, trace.columns
    lives = find_lives(program, columns)
    devices, device = find_devices(columns, lives, DEFAULT_DEVICE[program.as_device])
    return Memory(
        table=StorageTable(
            program=program,
            modules=trace.modules,
            columns=columns,
            lives=lives,
            device=device,
            devices=devices,
        )
    )


def find_devices(
    columns: Columns, lives: Lives, home: str
) -> tuple[tuple[str, ...], Integers]:
    """Return the names of devices, and the index of each storage's device.

    Storages without a named device are on the CPU, if the code names another device
    for any of them.
    """
    has_others = not {*columns.locations} <= {None, "cpu"}
    unnamed = "cpu" if has_others else home
    names = [unnamed if name is None else name for name in columns.locations]
    devices = tuple(dict.fromkeys(names))
    device_by_location = np.asarray([devices.index(name) for name in names])
    first = lives.first_tensor
    location = np.where(first < 0, 0, np.append(columns.location, 0)[first])
    return devices, device_by_location[location]
