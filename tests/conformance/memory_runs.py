"""A program recorded and run on the CPU: its memory beside what a tracker sees."""

import gc
from collections import Counter
from dataclasses import dataclass
from difflib import Match, SequenceMatcher

import torch

from meta_magic.cost.storage_lives import CATEGORIES
from meta_magic.session.record import record
from tests.conformance.storage_tracker import StorageTracker, track_purposes

TOLD = ("parameter", "buffer", "optimizer_state", "gradient", "saved")
"""What torch itself says of a storage; where it says several, the first counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """Bytes alive after each operator: as recorded, and as tracked on the CPU.

    Attributes:
        n_recorded: Operators recorded.
        n_real: Operators run.
        n_aligned: Operators that stand in the same order in both.
        n_equal: Of these, those after which the bytes are the same.
        peak_nbytes: Most bytes, as recorded.
        real_nbytes: Most bytes on the CPU.
    """

    n_recorded: int
    n_real: int
    n_aligned: int
    n_equal: int
    peak_nbytes: int
    real_nbytes: int

    @property
    def are_equal(self):
        """Whether they are the same, byte for byte at every operator."""
        return self.n_recorded == self.n_real == self.n_equal and self.has_peak

    @property
    def has_peak(self):
        return self.peak_nbytes == self.real_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Purposes:
    """What storages are for: as recorded, and as torch told of them on the CPU.

    Attributes:
        n_storages: Storages recorded.
        n_aligned: Storages that stand in the same order in both.
        n_by_pair: How many of those torch calls so and the recording so.
    """

    n_storages: int
    n_aligned: int
    n_by_pair: Counter

    @property
    def wrong(self):
        """Those that are called otherwise, with how many."""
        return {pair: n for pair, n in self.n_by_pair.items() if pair[0] != pair[1]}


def run_recorded(program):
    torch.manual_seed(0)
    gc.collect()
    with record(as_device="cpu") as trace:
        _kept = program()
    return trace


def run_real(program, *, tells_purposes=False):
    """Return the tracker of a run on the CPU."""
    torch.manual_seed(0)
    gc.collect()
    tracker = StorageTracker()
    if tells_purposes:
        with track_purposes(tracker), tracker:
            _kept = program()
    else:
        with tracker:
            _kept = program()
    return tracker


def is_lift(op):
    """Whether torch only says that a tensor was made of values: not all are told."""
    return op.startswith("aten.lift_fresh")


def find_blocks(ours, theirs):
    """Return the stretches of two sequences that are the same, in order."""
    if ours == theirs:
        return [Match(0, 0, len(ours))]
    return SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()


def compare_timelines(program):
    """Record and run a program, and compare its memory."""
    trace = run_recorded(program)
    names = [call.op for call in trace.ops]
    pairs = zip(names, trace.memory.live_nbytes, strict=True)
    ours = [(op, n) for op, n in pairs if not is_lift(op)]
    tracker = run_real(program)
    theirs = [(op, n) for op, n in tracker.timeline if not is_lift(op)]
    blocks = find_blocks([op for op, _ in ours], [op for op, _ in theirs])
    return Timelines(
        n_recorded=len(ours),
        n_real=len(theirs),
        n_aligned=sum(block.size for block in blocks),
        n_equal=sum(
            ours[block.a + i][1] == theirs[block.b + i][1]
            for block in blocks
            for i in range(block.size)
        ),
        peak_nbytes=trace.memory.peak_nbytes,
        real_nbytes=tracker.peak_nbytes,
    )


def list_births(memory):
    """Return (operator that made it or "", first bytes, category) of each storage."""
    lives, columns = memory.lives, memory.columns
    nbytes = dict(zip(lives.storage[::-1].tolist(), lives.nbytes[::-1], strict=True))
    births = []
    for storage, first in enumerate(lives.first_tensor.tolist()):
        if first >= 0:
            signature = memory.program.signatures[
                columns.signature[columns.call[first]]
            ]
            op = signature.op if columns.is_made[first] else ""
            category = CATEGORIES[memory.category[storage]]
            births.append((op, int(nbytes[storage]), category))
    return births


def compare_purposes(program):
    """Record and run a program, and compare what its storages are for."""
    born = list_births(run_recorded(program).memory)
    tracker = run_real(program, tells_purposes=True)
    ours = [("" if is_lift(op) else op, nbytes) for op, nbytes, _ in born]
    theirs = [("" if is_lift(op) else op, nbytes) for op, nbytes in tracker.births]
    pairs = Counter()
    blocks = find_blocks(ours, theirs)
    for block in blocks:
        for i in range(block.size):
            category = born[block.a + i][2]
            told = tracker.purposes[block.b + i]
            wanted = next((purpose for purpose in TOLD if purpose in told), "other")
            if category not in TOLD and (wanted, category) != ("saved", "input"):
                category = "other"
            pairs["input" if category == "input" else wanted, category] += 1
    return Purposes(
        n_storages=len(ours),
        n_aligned=sum(block.size for block in blocks),
        n_by_pair=pairs,
    )
