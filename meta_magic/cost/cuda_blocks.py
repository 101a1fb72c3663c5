"""The bytes that torch's allocator would count on a GPU, beside those of storages.

An estimate: what kernels take while they run is not in it. That of cuDNN, above all: it
chooses the size of its workspaces itself, and no document says how large they are.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from meta_magic.cost.living_storages import Account
from meta_magic.cost.program_columns import PHASES, Flags, Integers
from meta_magic.cost.storage_lives import add_up
from meta_magic.trace.units import format_bytes

__all__ = ["Allocated", "allocate_on_cuda"]

BLOCK_NBYTES: Final = 512
"""Bytes of which a storage takes a whole number.

Source: ``kMinBlockSize`` in ``CUDACachingAllocator.h`` of torch 2.13.
"""

WORKSPACE_NBYTES: Final = 2 * 4096 * 1024 + 8 * 16 * 1024
LARGE_WORKSPACE_NBYTES: Final = 32 * 1024 * 1024
LARGE_WORKSPACES: Final = frozenset({9, 10, 12})
"""What cuBLAS is given for good where a thread first multiplies matrices, and the major
compute capabilities of the GPUs on which it is the larger one.

Source: ``parseChosenWorkspaceSize`` and ``setWorkspaceForHandle`` in
``CublasHandlePool.cpp`` of torch 2.13, without ``CUBLAS_WORKSPACE_CONFIG``.
"""

PRODUCTS: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}
    | {"int_mm", "scaled_mm"}
)
"""Operators that cuBLAS runs, without underscores around their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What the allocator of one GPU would have handed out, as an estimate.

    Attributes:
        place: The GPU.
        live_nbytes: For each operator call the bytes right after it.
        workspace_nbytes: Of those at the end, the bytes of cuBLAS: once for the thread
            of the program, and once for that of its backward passes.
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
            f"{self.place}: {peak} at the peak, with workspaces of cuBLAS ({known} in "
            "the end); those of cuDNN are not counted: no document has them"
        )


def allocate_on_cuda(account: Account, place: str | None, major: int) -> Allocated:
    """Return what the allocator of a GPU would count.

    Args:
        account: What is known of the storages of a program.
        place: The GPU, such as ``cuda:0``; None for the first one there is.
        major: Major compute capability of the GPU.

    Raises:
        ValueError: Nothing lies there.
    """
    gpus = [name for name in account.places if name.startswith("cuda")]
    place = place or min(gpus, default="cuda")
    if place not in gpus:
        places = ", ".join(account.places)
        raise ValueError(
            f"nothing lies on {place}, but on {places}: name a device in the code, or "
            'record it with as_device="cuda"'
        )
    columns, lives = account.columns, account.lives
    is_there = account.place == account.places.index(place)
    blocks = -(-lives.nbytes // BLOCK_NBYTES) * BLOCK_NBYTES
    live = add_up(lives, columns.n_calls, is_there[lives.storage], blocks)
    large = major in LARGE_WORKSPACES
    nbytes = LARGE_WORKSPACE_NBYTES if large else WORKSPACE_NBYTES
    workspaces = nbytes * count_workspaces(account, is_there)
    return Allocated(
        place=place,
        live_nbytes=tuple((live + workspaces).tolist()),
        workspace_nbytes=int(workspaces.max(initial=0)),
    )


def count_workspaces(account: Account, is_there: Flags) -> Integers:
    """Return how many workspaces there are after each call.

    Args:
        account: What is known of the storages of a program.
        is_there: Of each storage whether it lies on the GPU.
    """
    columns = account.columns
    names = [signature.op.split(".")[1] for signature in account.program.signatures]
    is_product = np.asarray([n.strip("_") in PRODUCTS for n in names], np.bool_)
    made = columns.is_made & is_there[columns.storage]
    is_run = np.zeros(columns.n_calls, np.bool_)
    is_run[columns.call[made]] = True
    is_run &= is_product[columns.signature]
    is_backward = columns.phase == PHASES.index("backward")
    threads = (is_run & is_backward, is_run & ~is_backward)
    counts = [np.logical_or.accumulate(runs).astype(np.int64) for runs in threads]
    return counts[0] + counts[1]
