"""Memory over time: ``trace.memory``, the bytes alive after each call, and their use.

``measure_memory`` builds it; ``describe_live`` says what is alive at one moment.
``memory.as_allocated()`` estimates what torch's caching allocator would count on a GPU:
whole blocks, and the workspaces of cuBLAS. Workspaces of cuDNN are not in it: cuDNN
chooses their size, which is not documented.

``trace.fit(device, vary={"batch": ...})`` takes a :class:`Sample` at some sizes. Where
the program makes the same calls at every size, and its storages live equally long, the
bytes alive after each call are a polynomial of the size. The peak may be after another
call at another size, so :class:`Interpolation` has one polynomial for each call.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from math import lcm, prod
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.storage_lives import (
    CATEGORIES,
    Category,
    Lives,
    add_up,
    find_categories,
    find_lives,
    order_stretches,
)
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program
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


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStorage:
    """One storage that is alive.

    Attributes:
        storage_id: Its number, as in ``TensorMetadata.storage_id``.
        category: What it is for.
        place: Its device.
        index: The call that made it; if it is older than the recording, the first call
            that read it; None if no call did.
        root: Index into ``Trace.modules`` of the tree of its module, or None.
        module: fqn of the module that owns it, or else made it; None without one.
        line: Line of the cell that made it, or None.
    """

    storage_id: int
    nbytes: int
    category: Category
    place: str
    index: int | None
    op: str | None
    root: int | None
    module: str | None
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStorages:
    """All storages that are alive right after one operator call.

    Attributes:
        index: The call; None for a program without calls.
        storages: The storages, the largest first.
    """

    index: int | None
    storages: tuple[LiveStorage, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        return sum(storage.nbytes for storage in self.storages)

    @property
    def by_category(self) -> Mapping[Category, int]:
        """Bytes of each category, the largest first."""
        return self._sum_by(lambda storage: storage.category)

    @property
    def by_place(self) -> Mapping[str, int]:
        """Bytes on each device, the largest first."""
        return self._sum_by(lambda storage: storage.place)

    @property
    def by_module(self) -> Mapping[tuple[int, str] | None, int]:
        """Bytes by module: (root, fqn), or None; the largest first."""
        return self._sum_by(
            lambda storage: (
                None
                if storage.root is None or storage.module is None
                else (storage.root, storage.module)
            )
        )

    @property
    def by_line(self) -> Mapping[int | None, int]:
        """Bytes made by each line of the cell, the largest first; None for no line."""
        return self._sum_by(lambda storage: storage.line)

    def _sum_by(self, find_key: Callable[[LiveStorage], Key]) -> dict[Key, int]:
        sums: Counter[Key] = Counter()
        for storage in self.storages:
            sums[find_key(storage)] += storage.nbytes
        return {key: nbytes for key, nbytes in sums.most_common() if nbytes}

    def __repr__(self) -> str:
        parts = [f"{name} {format_bytes(n)}" for name, n in self.by_category.items()]
        where = "nowhere" if self.index is None else f"after operator {self.index:,}"
        return f"<LiveStorages: {', '.join(parts) or 'none'} {where}>"

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per storage, columns named as its fields."""
        import pandas as pd  # noqa: PLC0415  0.3 s, on first use

        names = [field.name for field in fields(LiveStorage)]
        rows = [tuple(getattr(s, name) for name in names) for s in self.storages]
        frame = pd.DataFrame(rows, columns=names)
        return frame.astype(dict.fromkeys(("index", "root", "line"), "Int64"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The estimated bytes of torch's allocator on one GPU.

    Attributes:
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


def count_workspaces(memory: "Memory", is_there: Flags) -> Integers:
    """Return the number of workspaces after each call, by which storages are there."""
    columns = memory.columns
    names = [signature.op.split(".")[1] for signature in memory.program.signatures]
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
        program: The program, with the call that raised.
        device: The index into ``devices`` of each storage's device.
    """

    program: "Program"
    modules: tuple["ModuleNode", ...]
    columns: Columns
    lives: Lives
    device: Integers
    devices: tuple[str, ...]

    @cached_property
    def category(self) -> Integers:
        """The index of each storage's category."""
        return find_categories(self.program, self.modules, self.columns, self.lives)

    @cached_property
    def live_nbytes(self) -> tuple[int, ...]:
        """The bytes that are alive right after each operator call."""
        return tuple(self._live.tolist())

    @cached_property
    def _live(self) -> Integers:
        return self._add_up(np.ones_like(self.lives.storage, np.bool_))

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
        n_calls = self.columns.n_calls
        if index is not None and not -n_calls <= index < n_calls:
            raise IndexError(f"there is no operator {index} among {n_calls:,}")
        return describe_live(self, index if index is None else index % n_calls)

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
        gpus = [name for name in self.devices if name.startswith("cuda")]
        gpu = place or min(gpus, default="cuda")
        if gpu not in gpus:
            others = ", ".join(self.devices)
            raise ValueError(
                f"no tensor is on {gpu}, only on {others}: name a device in the code, "
                'or record it with as_device="cuda"'
            )
        lives = self.lives
        is_there = self.device == self.devices.index(gpu)
        blocks = -(-lives.nbytes // BLOCK_NBYTES) * BLOCK_NBYTES
        live = add_up(lives, self.columns.n_calls, is_there[lives.storage], blocks)
        large = major in LARGE_WORKSPACES
        nbytes = LARGE_WORKSPACE_NBYTES if large else WORKSPACE_NBYTES
        workspaces = nbytes * count_workspaces(self, is_there)
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

        program, columns = self.program, self.columns
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
        of_stretch = self.category[self.lives.storage]
        for number, name in enumerate(CATEGORIES):
            yield name, self._add_up(of_stretch == number)

    def _devices(self) -> Iterator[tuple[str, Integers]]:
        of_stretch = self.device[self.lives.storage]
        for number in sorted(set(of_stretch.tolist())):
            yield self.devices[number], self._add_up(of_stretch == number)

    def _add_up(self, is_chosen: Flags) -> Integers:
        return add_up(self.lives, self.columns.n_calls, is_chosen)

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
        program=program,
        modules=trace.modules,
        columns=columns,
        lives=lives,
        device=device,
        devices=devices,
    )


def find_devices(
    columns: Columns, lives: Lives, home: str
) -> tuple[tuple[str, ...], Integers]:
    """Return the names of devices, and the index of each storage's device.

    If the code names a device for any of them, those without one are on the CPU.
    """
    has_others = not {*columns.locations} <= {None, "cpu"}
    unnamed = "cpu" if has_others else home
    names = [unnamed if name is None else name for name in columns.locations]
    devices = tuple(dict.fromkeys(names))
    device_by_location = np.asarray([devices.index(name) for name in names])
    first = lives.first_tensor
    location = np.where(first < 0, 0, np.append(columns.location, 0)[first])
    return devices, device_by_location[location]


def describe_live(memory: "Memory", index: int | None) -> LiveStorages:
    """Return the storages that are alive right after a call; none for None."""
    if index is None:
        return LiveStorages(index=None, storages=())
    lives = memory.lives
    is_alive = (lives.start <= index) & (lives.stop > index) & (lives.nbytes > 0)
    alive = np.flatnonzero(is_alive)
    alive = alive[np.argsort(-lives.nbytes[alive], kind="stable")]
    owner_by_storage = dict(memory.program.owner_by_storage)
    storages, nbytes = lives.storage[alive].tolist(), lives.nbytes[alive].tolist()
    return LiveStorages(
        index=index,
        storages=tuple(
            describe_storage(memory, storage, size, owner_by_storage.get(storage))
            for storage, size in zip(storages, nbytes, strict=True)
        ),
    )


def describe_storage(
    memory: "Memory", storage: int, nbytes: int, owner: int | None
) -> LiveStorage:
    """Return the record of one storage, given its owner: a module number or None."""
    program, columns = memory.program, memory.columns
    first = int(memory.lives.first_tensor[storage])
    call = None if first < 0 else int(columns.call[first])
    module = -1 if call is None else int(columns.module[call])
    module = module if owner is None else owner
    root, fqn = (None, None) if module < 0 else program.modules[module][:2]
    site = -1 if call is None else int(columns.call_site[call])
    signature = None if call is None else int(columns.signature[call])
    return LiveStorage(
        storage_id=storage,
        nbytes=nbytes,
        category=CATEGORIES[memory.category[storage]],
        place=memory.devices[memory.device[storage]],
        index=call,
        op=None if signature is None else program.signatures[signature].op,
        root=root,
        module=fqn,
        line=None if site < 0 else program.call_sites[site].line,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of one recording, on the device that needs most.

    Attributes:
        program: A hash of the device, the operators in their order, and the calls
            between which each storage is alive. Recordings that differ in sizes alone
            have the same hash.
        live_nbytes: The bytes alive after each call.
        device: An accelerator that the code names, else the only device.
        stretches: The bytes of each stretch of ``Lives``, by storage and start.
    """

    program: bytes
    live_nbytes: tuple[int, ...]
    device: str
    stretches: tuple[int, ...]

    @property
    def peak_nbytes(self) -> int:
        """Most bytes alive after any call."""
        return max(self.live_nbytes, default=0)


def take_sample(trace: "Trace") -> Sample:
    """Return the memory of a recording."""
    memory = trace.memory
    device, lives = find_fullest_device(memory), memory.lives
    return Sample(
        program=hash_program(memory, device),
        live_nbytes=memory.live_by_place.get(device, ()),
        device=device,
        stretches=tuple(lives.nbytes[order_stretches(lives)].tolist()),
    )


def find_fullest_device(memory: Memory) -> str:
    """Return the device that needs most bytes: an accelerator, if one is named."""
    peaks = memory.peak_by_place  # most first
    accelerators = [name for name in peaks if name.partition(":")[0] != "cpu"]
    return next(iter(accelerators or peaks), "cpu")


def hash_program(memory: Memory, device: str) -> bytes:
    """Return the hash of a recording without its sizes; see :class:`Sample`."""
    ops = [signature.op for signature in memory.program.signatures]
    names = "\n".join(ops[number] for number in memory.columns.signature)
    digest = blake2b(f"{device}\n{names}".encode(), digest_size=16)
    lives = memory.lives
    for column in (lives.storage, lives.start, lives.stop, memory.device):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interpolation:
    """A polynomial in the size for each call, by its values at the recorded sizes.

    Attributes:
        sizes: The recorded sizes; one more than the degree.
        live: For each size the bytes alive after each call, as Python integers.
    """

    sizes: tuple[int, ...]
    live: tuple[NDArray[np.object_], ...]

    def live_nbytes(self, size: int) -> list[Fraction]:
        """Return the bytes alive after each call at a size."""
        total, scale = self._add_up(size)
        return [Fraction(nbytes, scale) for nbytes in total]

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes alive after a call, rounded up; 0 for no calls."""
        total, scale = self._add_up(size)
        return int(-(-max(total, default=0) // scale))

    def list_highest(self, least: int) -> list[int]:
        """Return calls that include the peak at each size from ``least`` on.

        They are few: a call is omitted if another one has at least as many bytes at
        the first size, and grows at least as much at each step.
        """
        found = [self._add_up(least + step) for step in range(len(self.sizes))]
        scale = lcm(*(scale for _, scale in found))
        rows = np.array([total * (scale // own) for total, own in found], object)
        differences = []
        while len(rows):
            differences.append(rows[0])
            rows = np.diff(rows, axis=0)
        growth = np.array(differences, np.float64)
        others, highest = np.lexsort(growth)[::-1], []
        while others.size:
            best = others[0]
            highest.append(int(best))
            others = others[(growth[:, others] > growth[:, [best]]).any(axis=0)]
        return sorted(highest)

    def _add_up(self, size: int) -> tuple[NDArray[np.object_], int]:
        """Return the bytes after each call times an integer, and that integer."""
        weights = list(weigh(self.sizes, size))
        scale = lcm(*(weight.denominator for weight in weights))
        total = sum(
            int(weight * scale) * live
            for weight, live in zip(weights, self.live, strict=True)
        )
        return np.asarray(total, object), scale


def weigh(sizes: Sequence[int], size: int) -> Iterator[Fraction]:
    """Yield the weight of each recorded size at another size (Lagrange, exactly)."""
    for one in sizes:
        others = [other for other in sizes if other != one]
        yield Fraction(prod(size - o for o in others), prod(one - o for o in others))


def interpolate(sizes: Sequence[int], live: Sequence[Sequence[int]]) -> Interpolation:
    """Return the polynomials through the recorded bytes; see :class:`Interpolation`."""
    columns = tuple(np.array(row, object) for row in live)
    return Interpolation(sizes=tuple(sizes), live=columns)
