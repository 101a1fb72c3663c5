"""What a recording would cost: FLOPs and bytes by phase, module and operator.

``trace.cost`` is ``build_cost``. The formulas for one call are in ``trace/formulas``;
here they are multiplied by the number of calls and added up.

A roofline takes the longer of computing and moving bytes: ``build_roofline``.

Source:
    Williams, Waterman and Patterson, Roofline: an insightful visual performance model,
    Communications of the ACM 52 (4), 2009.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from meta_magic.cost.device_table import Device, Peak, find_device
from meta_magic.cost.program_columns import PHASES, Integers
from meta_magic.trace.formulas.call_costs import (
    WorkKind,
    count_operations,
    count_traffic,
)
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.signature import Phase, Signature
from meta_magic.trace.units import format_bytes, format_count, format_flops

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.trace import Trace


COUNTS = ("flops", "flops_needed", "n_elementwise", "nbytes_read", "nbytes_written")

Calls: TypeAlias = Sequence[tuple[int, int]]
"""Pairs (index of a signature, number of its calls)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of some calls: what they compute, read and write.

    Attributes:
        n_calls: Number of calls.
        flops: Floating-point operations of products and the like, 2 for each
            multiply-add, masked products too.
        flops_needed: FLOPs without the products that a causal mask or a window of a
            fused attention leaves out, which a kernel may skip.
        n_elementwise: Operations and functions element by element, by the weights of
            ``trace/formulas/elementwise_flops.py``; not among the FLOPs.
        nbytes_read: Bytes read, each element once.
        nbytes_written: Bytes written.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> work = trace.cost.by_op["aten.mm.default"]
        >>> work.flops, work.nbytes_read, work.nbytes_written  # 6 and 12 numbers make 8
        (48, 72, 32)
    """

    n_calls: int = 0
    flops: int = 0
    flops_needed: int = 0
    n_elementwise: int = 0
    nbytes_read: int = 0
    nbytes_written: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.nbytes_read + self.nbytes_written

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte read or written; None without bytes."""
        return self.flops / self.nbytes if self.nbytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCall(Work):
    """The work of one call of a signature.

    Attributes:
        kind: What it does; ``unknown`` without a formula.
        dtype: Dtype of the first input, or else output, which decides how fast
            products are; None without tensors.
    """

    op: str
    kind: WorkKind
    dtype: torch.dtype | None
    n_calls: int = 1


def count_one(signature: Signature) -> OneCall:
    """Return the work of one call, by the formulas."""
    tensors = (*signature.inputs, *signature.outputs)
    return OneCall(
        op=signature.op,
        dtype=tensors[0].dtype if tensors else None,
        **count_operations(signature)._asdict(),
        **count_traffic(signature)._asdict(),
    )


def add_up(calls: Calls, each: Sequence[Work]) -> Work:
    """Return the work of calls, given the work of one call of each signature."""
    counts = {
        name: sum(n * getattr(each[i], name) for i, n in calls) for name in COUNTS
    }
    return Work(n_calls=sum(n for _, n in calls), **counts)


def count_calls(keys: Integers, signatures: Integers) -> Mapping[int, Calls]:
    """Return how many calls have each key, such as their phase; none for -1."""
    n = int(signatures.max(initial=0)) + 1
    pairs, counts = np.unique(keys * n + signatures, return_counts=True)
    found: dict[int, list[tuple[int, int]]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        if pair >= 0:
            found.setdefault(pair // n, []).append((pair % n, count))
    return found


IN_TENSOR_CORES: Final = ("convolution", "rnn")
"""Parts of the names of operators whose float32 torch lets cuDNN compute as TF32."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The estimated time of a recording on a device; ``print`` shows it.

    It assumes that kernels reach the peaks of the data sheet, and leaves out the time
    of torch itself and of kernel launches. Good for totals and shares.

    Attributes:
        seconds_each: Seconds of one call of each signature.
        is_bound_by_memory: Whether its bytes take longer than its FLOPs.
        notes: Which peak was used for a dtype that the data sheet lacks.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(512, 512) @ torch.ones(512, 512)
        >>> roofline = trace.cost.roofline("t4")
        >>> round(roofline.seconds * 1e6, 1)  # 2 * 512**3 / 8.1e12 + 2**21 / 320e9
        39.7
    """

    device: Device
    cost: "Cost" = field(repr=False)
    seconds_each: tuple[float, ...] = field(repr=False)
    is_bound_by_memory: tuple[bool, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @cached_property
    def seconds(self) -> float:
        """Seconds of all calls."""
        return self._add_up(self.cost.calls)

    @cached_property
    def memory_share(self) -> float:
        """The share of the time, from 0 to 1, that calls bound by memory take."""
        bound = [(i, n) for i, n in self.cost.calls if self.is_bound_by_memory[i]]
        return self._add_up(bound) / self.seconds if self.seconds else 0.0

    @cached_property
    def by_phase(self) -> Mapping[Phase, float]:
        """Seconds of each phase."""
        return {p: self._add_up(c) for p, c in self.cost.calls_by_phase.items()}

    @cached_property
    def by_module(self) -> Mapping[str, float]:
        """Seconds of each module with its submodules, named as in ``Cost``."""
        return {m: self._add_up(c) for m, c in self.cost.calls_by_module.items()}

    @cached_property
    def by_op(self) -> Mapping[str, float]:
        """Seconds of each operator, the longest first."""
        seconds = {op: self._add_up(c) for op, c in self.cost.calls_by_op.items()}
        return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table of the cost, with the seconds of each call, and its bound.

        Columns:
            seconds (float): Time of the call.
            bound (str): memory or compute, whichever takes longer.
        """
        numbers = self.cost.signature
        bounds = np.where(self.is_bound_by_memory, "memory", "compute").astype(object)
        seconds = np.array(self.seconds_each)
        return self.cost.to_pandas().assign(
            seconds=seconds[numbers], bound=bounds[numbers]
        )

    def __str__(self) -> str:
        phases = self.by_phase.items()
        return "\n".join(
            (
                f"about {self.seconds:.3g} s on {self.device.title}, by its peaks",
                *(f"{phase}: {seconds:.3g} s" for phase, seconds in phases),
                f"bound by its memory: {self.memory_share:.0%} of the time",
                *self.notes,
            )
        )

    def _add_up(self, calls: Calls) -> float:
        return sum(n * self.seconds_each[number] for number, n in calls)


def build_roofline(cost: "Cost", device: Device, *, tf32: bool) -> Roofline:
    """Return the time of each call on a device.

    Masked products do not count. Operations element by element run at the peak of
    float32 without tensor cores, if the device has one.
    """
    peaks = [classify_products(o).find_peak(device, tf32=tf32) for o in cost.each]
    products = np.array([o.flops_needed for o in cost.each], float)
    products /= np.array([peak.flops for peak in peaks], float)
    vectors = find_vector_peak(device)
    if vectors is not None:
        elementwise = np.array([o.n_elementwise for o in cost.each], float) / vectors
        products = np.maximum(products, elementwise)
    moving = np.array([one.nbytes for one in cost.each], float) / device.bandwidth
    counted = zip(cost.each, peaks, strict=True)
    notes = dict.fromkeys(p.note for one, p in counted if one.flops and p.note)
    return Roofline(
        device=device,
        cost=cost,
        seconds_each=tuple(np.maximum(products, moving).tolist()),
        is_bound_by_memory=tuple((moving >= products).tolist()),
        notes=tuple(note for note in notes if note),
    )


class Products(NamedTuple):
    """The dtype of products, and whether torch lets cuDNN compute float32 as TF32."""

    dtype: torch.dtype
    is_cudnns: bool

    def find_peak(self, device: Device, *, tf32: bool = False) -> Peak:
        """Return the peak of a device for such products."""
        return device.find_peak(self.dtype, uses_tf32=tf32 or self.is_cudnns)


def classify_products(one: OneCall) -> Products:
    """Return the kind of products of a call, which decides their speed."""
    is_cudnns = any(word in one.op for word in IN_TENSOR_CORES)
    return Products(one.dtype or torch.float32, is_cudnns)


def find_vector_peak(device: Device) -> float | None:
    """Return operations element by element in a second on a device, or None."""
    return dict(device.peaks).get("float32")


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
