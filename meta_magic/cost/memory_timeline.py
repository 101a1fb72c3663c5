"""Memory over time: how many bytes live after each call of a program, and what for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.cuda_blocks import Allocated, allocate_on_cuda
from meta_magic.cost.living_storages import Account, LivingStorages, describe_living
from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.storage_categories import CATEGORIES, Category
from meta_magic.cost.storage_lives import Lives, add_up, find_lives
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.trace import Trace

__all__ = ["Memory", "measure_memory"]

HOMES: Final = {"cpu": "cpu", "cuda": "cuda:0", "meta": "meta"}
"""Where all lies of code that names no device, by whose kernels are recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """The storages that a program's tensors share, from birth to death.

    Bytes are those of storages, each counted once, on whatever device the code wants
    them: what kernels need while they run, and what an allocator rounds, is not in
    them. A storage that is older than the recording counts from the first call that
    meets it.

    Attributes:
        account: What is known of each storage.
    """

    account: Account = field(repr=False)

    @cached_property
    def live_nbytes(self) -> tuple[int, ...]:
        """For each operator call the bytes that are alive right after it."""
        return tuple(self._live.tolist())

    @cached_property
    def _live(self) -> Integers:
        return self._add_up(np.ones_like(self.account.lives.storage, np.bool_))

    @property
    def peak_index(self) -> int | None:
        """The first call after which most bytes are alive; None where there is none."""
        return int(self._live.argmax()) if len(self._live) else None

    @property
    def peak_nbytes(self) -> int:
        """Most bytes that are alive after any call."""
        return int(self._live.max(initial=0))

    @cached_property
    def peak(self) -> LivingStorages:
        """What is alive at the peak."""
        return self.at(self.peak_index)

    def at(self, index: int | None) -> LivingStorages:
        """Return what is alive right after an operator call.

        Args:
            index: The call, counted from the end where it is negative.

        Raises:
            IndexError: There is no such call.
        """
        n_calls = self.account.columns.n_calls
        if index is not None and not -n_calls <= index < n_calls:
            raise IndexError(f"operator {index} of {n_calls:,} was asked for")
        return describe_living(
            self.account, index if index is None else index % n_calls
        )

    @cached_property
    def live_by_category(self) -> Mapping[Category, tuple[int, ...]]:
        """As ``live_nbytes``, of each category."""
        return {name: tuple(live.tolist()) for name, live in self._categories()}

    @cached_property
    def live_by_place(self) -> Mapping[str, tuple[int, ...]]:
        """As ``live_nbytes``, of each device on which something lies."""
        return {name: tuple(live.tolist()) for name, live in self._places()}

    @cached_property
    def peak_by_place(self) -> Mapping[str, int]:
        """Most bytes that are alive on each device, at whatever time; most first."""
        peaks = {name: int(live.max(initial=0)) for name, live in self._places()}
        return dict(sorted(peaks.items(), key=lambda item: -item[1]))

    def as_allocated(self, place: str | None = None, *, major: int = 8) -> Allocated:
        """Return what torch's allocator would count on a GPU, as an estimate.

        Storages take whole blocks, and cuBLAS workspaces. Those of cuDNN are not
        counted, as no document has their size, nor what other kernels take.

        Args:
            place: The GPU, such as ``cuda:0``; None for the first one there is.
            major: Its major compute capability, such as 9 for an H100.

        Raises:
            ValueError: Nothing lies there.
        """
        return allocate_on_cuda(self.account, place, major)

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per operator call.

        Columns:
            op (str): What it ran.
            phase (str): What the program was doing.
            live_nbytes (int, bytes): Alive right after it.
            parameter, buffer, gradient, optimizer_state, saved, temporary, input,
                output (int, bytes): Of these, those of one category.
            cpu, cuda:0, ... (int, bytes): Of these, those on one device.
        """
        import pandas as pd  # noqa: PLC0415  0.3 s, on first use

        program, columns = self.account.program, self.account.columns
        ops = [signature.op for signature in program.signatures]
        first = {
            "op": np.asarray(ops, object)[columns.signature],
            "phase": np.asarray(PHASES)[columns.phase],
            "live_nbytes": self._live,
        }
        return pd.DataFrame(first).assign(
            **dict(self._categories()), **dict(self._places())
        )

    def _categories(self) -> Iterator[tuple[Category, Integers]]:
        of_stretch = self.account.category[self.account.lives.storage]
        for number, name in enumerate(CATEGORIES):
            yield name, self._add_up(of_stretch == number)

    def _places(self) -> Iterator[tuple[str, Integers]]:
        of_stretch = self.account.place[self.account.lives.storage]
        for number in sorted(set(of_stretch.tolist())):
            yield self.account.places[number], self._add_up(of_stretch == number)

    def _add_up(self, is_chosen: Flags) -> Integers:
        return add_up(self.account.lives, self.account.columns.n_calls, is_chosen)

    def __repr__(self) -> str:
        where = ", ".join(
            f"{p} {format_bytes(n)}" for p, n in self.peak_by_place.items()
        )
        return f"<Memory: {where or 'nothing'} at peak>"


def measure_memory(trace: "Trace") -> Memory:
    """Return the memory of a recorded program over time."""
    program, columns = trace.program.with_raised, trace.columns
    lives = find_lives(program, columns)
    places, place = find_places(columns, lives, HOMES[program.as_device])
    return Memory(
        account=Account(
            program=program,
            modules=trace.modules,
            columns=columns,
            lives=lives,
            place=place,
            places=places,
        )
    )


def find_places(
    columns: Columns, lives: Lives, home: str
) -> tuple[tuple[str, ...], Integers]:
    """Return the names of devices, and for each storage the index of its own.

    What the code names no device for lies on the CPU, if it names another for anything.
    """
    has_others = not {*columns.locations} <= {None, "cpu"}
    unnamed = "cpu" if has_others else home
    names = [unnamed if name is None else name for name in columns.locations]
    places = tuple(dict.fromkeys(names))
    place_by_location = np.asarray([places.index(name) for name in names])
    first = lives.first_tensor
    location = np.where(first < 0, 0, np.append(columns.location, 0)[first])
    return places, place_by_location[location]
