"""What a recording would cost: FLOPs and bytes by phase, module and operator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.call_work import (
    Calls,
    OneCall,
    Work,
    add_up,
    count_calls,
    count_one,
)
from meta_magic.cost.cost_table import build_cost_table
from meta_magic.cost.cost_text import format_cost
from meta_magic.cost.device_table import find_device
from meta_magic.cost.lineages import Lineage, build_lineages
from meta_magic.cost.program_columns import PHASES, Integers
from meta_magic.cost.rooflines import Roofline, build_roofline
from meta_magic.trace.signature import Phase

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.device_table import Device
    from meta_magic.trace.trace import Trace

__all__ = ["Cost", "UnknownOperator", "build_cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperator:
    """An operator that has no formula.

    Attributes:
        op: Its name.
        n_calls: How often it was called.
        nbytes: Bytes that its calls read and wrote.
        share: Of the bytes of all calls, from 0 to 1.

    Example:
        >>> with record() as trace:
        ...     x = torch.ops.aten.linalg_matrix_exp(torch.ones(2, 2))
        >>> [unknown.op for unknown in trace.cost.unknown]
        ['aten.linalg_matrix_exp.default']
    """

    op: str
    n_calls: int
    nbytes: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the operators of a recording compute and move; ``print`` shows it.

    FLOPs are those of products and their like, 2 for each multiply-add; what computes
    element by element is counted apart. A call that raised counts nothing.

    Attributes:
        each: What one call of each signature computes and moves.
        signature: Of each call its signature.
        phase: Of each call the index of its phase in ``PHASES``.
        module: Of each call the number of its module, as ``OpCall.module`` has it; -1
            for none.
        lineages: Of each module that a call can belong to.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> trace.cost.flops  # 2 * 2 * 3 * 4
        48
    """

    each: tuple[OneCall, ...] = field(repr=False)
    signature: Integers = field(repr=False, compare=False)
    phase: Integers = field(repr=False, compare=False)
    module: Integers = field(repr=False, compare=False)
    lineages: tuple[Lineage, ...] = field(repr=False)

    @property
    def flops(self) -> int:
        """FLOPs of all calls, of masked products too."""
        return self.total.flops

    @cached_property
    def total(self) -> Work:
        """What all calls compute and move."""
        return add_up(self.calls, self.each)

    @cached_property
    def by_phase(self) -> Mapping[Phase, Work]:
        """What each phase computes and moves: init, forward, backward and so on."""
        return {p: add_up(c, self.each) for p, c in self.calls_by_phase.items()}

    @cached_property
    def by_module(self) -> Mapping[str, Work]:
        """What each module computes and moves, with all in it, and with its backward.

        By its name: that of its root as it is written, and its own in there, such as
        ``model.layers.0``. Calls outside of modules are in ``total`` alone.
        """
        return {m: add_up(c, self.each) for m, c in self.calls_by_module.items()}

    @cached_property
    def by_op(self) -> Mapping[str, Work]:
        """What the calls of each operator compute and move, most FLOPs first."""
        works = {op: add_up(c, self.each) for op, c in self.calls_by_op.items()}
        ranked = sorted(works, key=lambda op: (-works[op].flops, -works[op].nbytes))
        return {op: works[op] for op in ranked}

    @cached_property
    def unknown(self) -> tuple[UnknownOperator, ...]:
        """The operators that have no formula, most bytes first.

        ``meta_magic.flop_formula`` gives them one.
        """
        names = {one.op for one in self.each if one.kind == "unknown"}
        found = [(op, add_up(self.calls_by_op[op], self.each)) for op in names]
        return tuple(
            UnknownOperator(
                op=op,
                n_calls=work.n_calls,
                nbytes=work.nbytes,
                share=work.nbytes / (self.total.nbytes or 1),
            )
            for op, work in sorted(found, key=lambda pair: (-pair[1].nbytes, pair[0]))
        )

    def seconds(
        self, device: "str | Device" = "h100-sxm", *, tf32: bool = False
    ) -> float:
        """Return an estimate of how long a device would take; see :meth:`roofline`."""
        return self.roofline(device, tf32=tf32).seconds

    def roofline(
        self, device: "str | Device" = "h100-sxm", *, tf32: bool = False
    ) -> Roofline:
        """Return how long a device would take, by phase, module and operator.

        A call takes as long as its FLOPs at the peak of their dtype, or as its bytes at
        the memory's, whichever is longer. That is an estimate, from data sheets: good
        for totals and shares, and for single calls as a rank.

        Args:
            device: A name in ``devices.toml``, or a :class:`Device`.
            tf32: Whether products of float32 matrices use tensor cores, as after
                ``torch.set_float32_matmul_precision("high")``. Convolutions and
                recurrent layers do, by torch's default.

        Raises:
            UnknownDeviceError: There is no device of that name.
        """
        return build_roofline(self, find_device(device), tf32=tf32)

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per operator call, with the index of ``trace.to_pandas()``.

        Columns:
            op, phase (str), module (str or None, as in ``by_module``).
            kind (str): product, elementwise, moves (no arithmetic) or unknown.
            flops, flops_needed, n_elementwise (int): As in ``total``.
            nbytes_read, nbytes_written (int, bytes).
            intensity (float): FLOPs for each byte; absent without bytes.
        """
        return build_cost_table(self)

    def __str__(self) -> str:
        return format_cost(self)

    @cached_property
    def calls(self) -> Calls:
        """How many calls there are of each signature."""
        counts = np.bincount(self.signature).tolist()
        return [(number, n) for number, n in enumerate(counts) if n]

    @cached_property
    def calls_by_phase(self) -> Mapping[Phase, Calls]:
        """The same for each phase."""
        counted = count_calls(self.phase, self.signature)
        return {PHASES[number]: calls for number, calls in counted.items()}

    @cached_property
    def calls_by_module(self) -> Mapping[str, Calls]:
        """The same for each module, with those of all modules in it."""
        within: dict[str, list[tuple[int, int]]] = {}
        counted = count_calls(self.module, self.signature)
        for number, calls in counted.items():
            for name in reversed(self.lineages[number]):
                within.setdefault(name, []).extend(calls)
        return within

    @cached_property
    def calls_by_op(self) -> Mapping[str, Calls]:
        """The same for each operator."""
        by_op: dict[str, list[tuple[int, int]]] = {}
        for number, n in self.calls:
            by_op.setdefault(self.each[number].op, []).append((number, n))
        return by_op


def build_cost(trace: "Trace") -> Cost:
    """Return what the operators of a trace compute and move."""
    program = trace.program
    columns, n_calls = trace.columns, program.n_calls  # without one that raised
    return Cost(
        each=tuple(map(count_one, program.signatures)),
        signature=columns.signature[:n_calls],
        phase=columns.phase[:n_calls],
        module=columns.find_holders(program)[:n_calls],
        lineages=build_lineages(program, trace.modules),
    )
