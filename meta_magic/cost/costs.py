"""What a recording would cost: FLOPs and bytes by phase, module and operator.

``trace.cost`` is ``build_cost``. The formulas for one call are in ``trace/formulas``;
here they are multiplied by the number of calls and added up.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.call_work import (
    COUNTS,
    Calls,
    OneCall,
    Work,
    add_up,
    count_calls,
    count_one,
)
from meta_magic.cost.device_table import find_device
from meta_magic.cost.program_columns import PHASES, Integers
from meta_magic.cost.rooflines import Roofline, build_roofline
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.signature import Phase
from meta_magic.trace.units import format_bytes, format_count, format_flops

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.device_table import Device
    from meta_magic.trace.trace import Trace

ModulePath = tuple[str, ...]
"""The name of a module, then those of its parents up to the root; () if unknown."""


def name_roots(modules: Sequence[ModuleNode]) -> Iterator[str]:
    """Yield a unique name for each root."""
    seen = Counter[str]()
    for root in modules:
        name = root.name or root.class_name
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def name_upwards(root: str, fqn: str) -> Iterator[str]:
    """Yield the names of a module and of its parents."""
    parts = fqn.split(".") if fqn else []
    for n in range(len(parts), 0, -1):
        yield f"{root}.{'.'.join(parts[:n])}"
    yield root


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperator:
    """An operator without a formula.

    Attributes:
        nbytes: Bytes that its calls read and wrote.
        share: Their share of the bytes of all calls, from 0 to 1.

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
    """What the operators of a recording compute, read and write; ``print`` shows it.

    FLOPs are those of products and the like, 2 for each multiply-add; operations
    element by element are counted apart. A call that raised counts nothing.

    Attributes:
        each: The work of one call of each signature.
        signature: The signature of each call.
        phase: The index in ``PHASES`` of each call's phase.
        module: The number of each call's module, as in ``OpCall.module``; -1 for none.
        paths: The names of each module and its parents.

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
    paths: tuple[ModulePath, ...] = field(repr=False)

    @property
    def flops(self) -> int:
        """FLOPs of all calls, masked products too."""
        return self.total.flops

    @cached_property
    def total(self) -> Work:
        """The work of all calls."""
        return add_up(self.calls, self.each)

    @cached_property
    def by_phase(self) -> Mapping[Phase, Work]:
        """The work of each phase: init, forward, backward and so on."""
        return {p: add_up(c, self.each) for p, c in self.calls_by_phase.items()}

    @cached_property
    def by_module(self) -> Mapping[str, Work]:
        """The work of each module with its submodules, forward and backward.

        By name: that of the root and the module's own, such as ``model.layers.0``.
        Calls outside of modules are in ``total`` alone.
        """
        return {m: add_up(c, self.each) for m, c in self.calls_by_module.items()}

    @cached_property
    def by_op(self) -> Mapping[str, Work]:
        """The work of each operator, most FLOPs first."""
        works = {op: add_up(c, self.each) for op, c in self.calls_by_op.items()}
        ranked = sorted(works, key=lambda op: (-works[op].flops, -works[op].nbytes))
        return {op: works[op] for op in ranked}

    @cached_property
    def unknown(self) -> tuple[UnknownOperator, ...]:
        """Operators without a formula (see ``flop_formula``), most bytes first."""
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
        """Return the estimated time on a device; see :meth:`roofline`."""
        return self.roofline(device, tf32=tf32).seconds

    def roofline(
        self, device: "str | Device" = "h100-sxm", *, tf32: bool = False
    ) -> Roofline:
        """Return the estimated time on a device, by phase, module and operator.

        The time of a call is that of its FLOPs at the peak for their dtype, or of its
        bytes at the memory's bandwidth, whichever is longer. The peaks are from data
        sheets: good for totals and shares, and to rank single calls.

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
            op, phase (str), module (str or None, named as in ``by_module``).
            kind (str): product, elementwise, moves (no arithmetic) or unknown.
            flops, flops_needed, n_elementwise (int): As in ``total``.
            nbytes_read, nbytes_written (int, bytes).
            intensity (float): FLOPs for each byte; absent without bytes.
        """
        import pandas as pd  # noqa: PLC0415  0.3 s, on first use

        numbers = self.signature
        names = [path[0] if path else None for path in self.paths]
        labels = {
            "op": np.array([one.op for one in self.each], object)[numbers],
            "phase": np.array(PHASES, object)[self.phase],
            "module": np.array([*names, None], object)[self.module],
            "kind": np.array([one.kind for one in self.each], object)[numbers],
        }
        counts = {
            name: np.array([getattr(one, name) for one in self.each], np.int64)[numbers]
            for name in COUNTS
        }
        frame = pd.DataFrame(labels | counts)
        nbytes = frame["nbytes_read"] + frame["nbytes_written"]
        frame["intensity"] = (frame["flops"] / nbytes).where(nbytes > 0)
        return frame

    def __str__(self) -> str:
        lines = [format_work(self.total)]
        lines += [f"{p}: {format_work(work)}" for p, work in self.by_phase.items()]
        for unknown in self.unknown:
            times = f"{unknown.n_calls:,} call{'' if unknown.n_calls == 1 else 's'}"
            share = f"{unknown.share:.1%} of the bytes"
            lines.append(f"no formula: {unknown.op}, {times}, {share}")
        return "\n".join(lines)

    @cached_property
    def calls(self) -> Calls:
        """The number of calls of each signature."""
        counts = np.bincount(self.signature).tolist()
        return [(number, n) for number, n in enumerate(counts) if n]

    @cached_property
    def calls_by_phase(self) -> Mapping[Phase, Calls]:
        """The calls of each phase."""
        counted = count_calls(self.phase, self.signature)
        return {PHASES[number]: calls for number, calls in counted.items()}

    @cached_property
    def calls_by_module(self) -> Mapping[str, Calls]:
        """The calls of each module, with those of its submodules."""
        within: dict[str, list[tuple[int, int]]] = {}
        counted = count_calls(self.module, self.signature)
        for number, calls in counted.items():
            for name in reversed(self.paths[number]):
                within.setdefault(name, []).extend(calls)
        return within

    @cached_property
    def calls_by_op(self) -> Mapping[str, Calls]:
        """The calls of each operator."""
        by_op: dict[str, list[tuple[int, int]]] = {}
        for number, n in self.calls:
            by_op.setdefault(self.each[number].op, []).append((number, n))
        return by_op


def build_cost(trace: "Trace") -> Cost:
    """Return the cost of a trace."""
    program = trace.program
    columns, n_calls = trace.columns, program.n_calls  # without one that raised
    roots = [*name_roots(trace.modules)]
    return Cost(
        each=tuple(map(count_one, program.signatures)),
        signature=columns.signature[:n_calls],
        phase=columns.phase[:n_calls],
        module=columns.find_holders(program)[:n_calls],
        paths=tuple(
            () if root is None or fqn is None else (*name_upwards(roots[root], fqn),)
            for root, fqn, _ in program.modules
        ),
    )


def format_work(work: Work) -> str:
    """Return the work of calls on one line."""
    skipped = work.flops - work.flops_needed
    masked = f" ({format_flops(skipped)} of them masked)" if skipped else ""
    return " · ".join(
        (
            f"{format_flops(work.flops)}{masked}",
            f"{format_count(work.n_elementwise)} operations element by element",
            f"{format_bytes(work.nbytes_read)} read",
            f"{format_bytes(work.nbytes_written)} written",
        )
    )
