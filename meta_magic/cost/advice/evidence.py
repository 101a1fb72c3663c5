"""The records of advice, and its evidence: columns, and peaks without some storages.

A rule of ``trace.advice`` selects storages; ``save_without`` and its neighbours return
by how much the peak would be lower without them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.memory_timeline import find_fullest_device
from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.storage_lives import CATEGORIES, Category, add_up
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.signature import Phase, Signature
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.memory_timeline import Memory
    from meta_magic.cost.storage_lives import Lives
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program
    from meta_magic.trace.world import Sent, World


LIBRARIES: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of code that the user does not change."""


def is_own_file(file: str) -> bool:
    """Whether a file is the user's own, and not that of an installed library."""
    return not LIBRARIES & {*PurePath(file).parts}


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """A program with the call that raised, its module trees, its memory over time.

    With the world that it was recorded for, and what the rank sends.
    """

    program: "Program"
    modules: "tuple[ModuleNode, ...]"
    memory: "Memory"
    world: "World | None" = None
    sent: "tuple[Sent, ...]" = ()

    @property
    def columns(self) -> Columns:
        """The columns of the program."""
        return self.memory.columns

    @property
    def lives(self) -> "Lives":
        """When its storages are alive."""
        return self.memory.lives

    def is_of(self, category: Category) -> Flags:
        """Return for each storage whether it has a category."""
        of_category: Flags = self.memory.category == CATEGORIES.index(category)
        return of_category

    def is_in(self, *phases: Phase) -> Flags:
        """Return for each call whether it is in one of the phases."""
        numbers = [PHASES.index(phase) for phase in phases]
        within: Flags = np.isin(self.columns.phase, numbers)
        return within

    def calls_of(self, is_meant: Callable[[Signature], bool]) -> Flags:
        """Return for each call whether ``is_meant`` holds for its signature."""
        flags = [is_meant(signature) for signature in self.program.signatures]
        meant: Flags = np.asarray([*flags, False], np.bool_)[self.columns.signature]
        return meant

    def of_slots(self, read: Callable[[Signature], Iterable[int]]) -> Integers:
        """Return a number for each tensor of each call."""
        values = chain.from_iterable(map(read, self.program.signatures))
        return np.fromiter(values, np.int64)[self.columns.slot]

    @cached_property
    def flops(self) -> Integers:
        """For each call its FLOPs; 0 without a formula."""
        each = [count_flops(signature) or 0 for signature in self.program.signatures]
        return np.asarray([*each, 0], np.int64)[self.columns.signature]

    @cached_property
    def maker(self) -> Integers:
        """For each storage the call that made it; -1 for one that is older."""
        first = self.lives.first_tensor
        is_made = (first >= 0) & self.columns.is_made[first]
        return np.where(is_made, self.columns.call[first], -1)

    @cached_property
    def nbytes(self) -> Integers:
        """For each storage the most bytes that it has."""
        nbytes = np.zeros(self.columns.n_storages, np.int64)
        np.maximum.at(nbytes, self.lives.storage, self.lives.nbytes)
        return nbytes

    @cached_property
    def stop(self) -> Integers:
        """For each storage the call before which it was freed."""
        stop = np.zeros(self.columns.n_storages, np.int64)
        np.maximum.at(stop, self.lives.storage, self.lives.stop)
        return stop

    @cached_property
    def is_left(self) -> Flags:
        """For each storage whether it outlives the block."""
        left = np.ones(self.columns.n_storages, np.bool_)
        left[np.frombuffer(self.program.deaths, np.uint32)[1::2]] = False
        return left

    @cached_property
    def is_last(self) -> Flags:
        """For each storage whether it is alive after the last call."""
        last: Flags = self.stop == self.columns.n_calls
        return last

    @cached_property
    def is_received(self) -> Flags:
        """For each call whether it only writes what a collective before it received.

        Ranks that are recorded side by side hand each other values, and copy them.
        """
        columns, received = self.columns, np.zeros(self.columns.n_calls, np.bool_)
        is_copy = self.calls_of(lambda s: s.op == "aten.copy_.default")
        is_part = is_copy | self.calls_of(lambda s: s.op == "aten.slice.Tensor")
        for sent in self.sent:
            given = {*columns.storage[self.tensors_of(sent.index)].tolist()}
            call = sent.index + 1
            while call < columns.n_calls and is_part[call]:
                part = self.tensors_of(call)
                written = columns.storage[part][columns.is_written[part]].tolist()
                received[call] = bool(is_copy[call]) and given.issuperset(written)
                call += 1
        return received

    def last_call(self, tensors: Flags) -> Integers:
        """Return for each storage the last call that has one of ``tensors``, or -1."""
        last = np.full(self.columns.n_storages, -1)
        storages, calls = self.columns.storage[tensors], self.columns.call[tensors]
        last[storages] = calls  # calls are in order: the last one stays
        return last

    def tensors_of(self, call: int) -> slice:
        """Return the slice of the columns with the tensors of a call."""
        return slice(int(self.columns.first[call]), int(self.columns.first[call + 1]))

    def lines_of(self, calls: Iterable[int]) -> tuple[int, ...]:
        """Return the lines of the cell of calls, or of their forward calls."""
        columns, sites = self.columns, set[int]()
        for call in calls:
            forward = int(columns.forward[call])
            sites.add(int(columns.call_site[call if forward < 0 else forward]))
        lines = {self.program.call_sites[site].line for site in sites if site >= 0}
        return tuple(sorted(line for line in lines if line is not None))

    def call_sites_of(self, calls: Iterable[int]) -> tuple[int, ...]:
        """Return the call sites of torch's functions whose position is known."""
        found = {int(self.columns.call_site[call]) for call in calls} - {-1}
        sites = self.program.call_sites
        return tuple(
            number
            for number in sorted(found)
            if sites[number].function is not None and sites[number].position is not None
        )

    @cached_property
    def is_own(self) -> Flags:
        """For each call whether code outside of libraries made it."""
        positions = [site.position for site in self.program.call_sites]
        flags = [p is not None and is_own_file(p.file) for p in positions]
        return np.asarray([*flags, False], np.bool_)[self.columns.call_site]

    @cached_property
    def device(self) -> str:
        """The device that needs most bytes."""
        return find_fullest_device(self.memory)

    @cached_property
    def peak_nbytes(self) -> int:
        """Most bytes that are alive there."""
        return self._find_peak(self.lives)

    def save_without(self, storages: Iterable[int]) -> int:
        """Return the bytes by which the peak would be lower without some storages."""
        shares = np.ones(self.columns.n_storages)
        shares[np.asarray([*storages], np.int64)] = 0
        return self.save_by(shares)

    def save_by(
        self, shares: "np.typing.NDArray[np.float64]", stop: Integers | None = None
    ) -> int:
        """Return the bytes by which the peak would be lower with smaller storages.

        ``shares`` has for each storage the remaining share of its bytes, ``stop`` the
        call before which it would be freed.
        """
        lives = self.lives
        nbytes = (lives.nbytes * shares[lives.storage]).astype(np.int64)
        stops = lives.stop
        if stop is not None:
            stops = np.maximum(np.minimum(stops, stop[lives.storage]), lives.start)
        smaller = replace(lives, nbytes=nbytes, stop=stops)
        return self.peak_nbytes - self._find_peak(smaller)

    def save_between(self, storages: Integers, start: Integers, stop: Integers) -> int:
        """Return the bytes by which the peak would be lower if storages were freed.

        Each is freed after its call ``start``, and alive again after its call ``stop``.
        """
        lives, gone = self.lives, self.nbytes[storages]
        with_gaps = replace(
            lives,
            storage=np.concatenate((lives.storage, storages)),
            nbytes=np.concatenate((lives.nbytes, -gone)),
            start=np.concatenate((lives.start, start)),
            stop=np.concatenate((lives.stop, stop)),
        )
        return self.peak_nbytes - self._find_peak(with_gaps)

    def _find_peak(self, lives: "Lives") -> int:
        """Return the most bytes of stretches on ``device``."""
        if self.device not in self.memory.devices:
            return 0
        number = self.memory.devices.index(self.device)
        is_here = self.memory.device[lives.storage] == number
        return int(add_up(lives, self.columns.n_calls, is_here).max(initial=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the block recorded again needs, as it is and with one change.

    Attributes:
        choice: The change, such as ``fused``.
        before_nbytes: Bytes at the peak without it, on the device that needs most.
        after_nbytes: Bytes at the peak with it.
        before_seconds: Estimated seconds of communication without it, in a world.
        after_seconds: The same with it.
    """

    choice: str
    before_nbytes: int
    after_nbytes: int
    before_seconds: float = 0.0
    after_seconds: float = 0.0

    @property
    def saved_nbytes(self) -> int:
        """Bytes by which the peak is lower."""
        return self.before_nbytes - self.after_nbytes

    def __str__(self) -> str:
        before, after = map(format_bytes, (self.before_nbytes, self.after_nbytes))
        if self.before_seconds == self.after_seconds:
            return f"{before} at the peak, {after} with {self.choice}"
        one, other = (s * 1e6 for s in (self.before_seconds, self.after_seconds))
        return (
            f"{before} at the peak and {one:,.0f} us of communication, {after} and "
            f"{other:,.0f} us with {self.choice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Work or memory of a program that is wasted, or could be less.

    Attributes:
        kind: Short name of the rule, such as ``copy``.
        text: One line: what happens, and how to prevent it.
        lines: Lines of the cell where it happens, in order.
        nbytes: Bytes of the storages that are not needed.
        peak_nbytes: Bytes by which the peak of the fullest device would be lower.
        flops: FLOPs that are not needed; negative if the advice costs FLOPs.
        seconds: Estimated seconds of communication that are not needed.
        choice: The change to record the block again with; None if that cannot help.
        call_sites: The calls that the choice changes, as in ``Program.call_sites``.
        proof: The peaks with and without the choice; None if nothing was recorded.
        unproven: Why there is no proof, so that the saving is only computed; None if
            there is one, or none was asked for.
    """

    kind: str
    text: str
    lines: tuple[int, ...]
    nbytes: int = 0
    peak_nbytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    choice: str | None = None
    call_sites: tuple[int, ...] = ()
    proof: Proof | None = None
    unproven: str | None = None

    def __str__(self) -> str:
        where = ", ".join(map(str, self.lines))
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.kind}: {self.text}" + (f" ({word} {where})" if where else "")
