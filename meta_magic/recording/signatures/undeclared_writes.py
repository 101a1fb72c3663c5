"""Operators that write arguments although their schema denies it.

A replay leaves a call out whose results nobody reads. By its schema
``dist.all_gather_into_tensor(y, x)`` writes nothing: ``y`` would keep its old values.
``tests/conformance/test_undeclared_writes.py`` goes through all operators that torch
registers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from meta_magic.trace.signature import Argument

__all__ = ["find_always_written", "find_overwritten", "find_written_statistics"]

OF_C10D: Final = "c10d."
SENDING: Final = "c10d.send.default"
REDUCED: Final = "tensors"
"""Name of what a collective reads and writes; what it only writes is an output."""

OTHERS: Final[Mapping[str, frozenset[str]]] = {
    "fsdp.all_gather_copy_in.default": frozenset({"all_gather_output"}),
}

STATISTICS: Final = frozenset({"running_mean", "running_var"})
WRITING_STATISTICS: Final = frozenset(
    f"aten.{name}.{variant}"
    for variant in ("default", "out")
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_update_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
)
"""Operators that write the statistics, unless they are told that this is no
training."""


def find_always_written(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments that each call of an operator writes undeclared."""
    reduced = {REDUCED} & {*names} if is_collective(op) else set()
    return OTHERS.get(op, frozenset()) | find_overwritten(op, names) | reduced


def find_overwritten(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments of which a collective writes all and reads nothing.

    Source:
        ``FakeProcessGroup.hpp`` and ``ProcessGroupGloo.cpp`` of torch 2.13: each output
        is copied to, by the group that sends nothing as well.
    """
    outputs = (name for name in names if name.startswith("output"))
    return frozenset(outputs if is_collective(op) else ())


def find_written_statistics(
    op: str, arguments: Iterable[tuple[str, Argument]]
) -> frozenset[str]:
    """Return the arguments that a call of a batch norm writes undeclared."""
    is_writing = op in WRITING_STATISTICS and ("training", False) not in arguments
    return STATISTICS if is_writing else frozenset()


def is_collective(op: str) -> bool:
    """Whether an operator fills tensors with what a process group sends."""
    return op.startswith(OF_C10D) and op != SENDING
