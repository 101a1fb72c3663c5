"""The estimated time on a device: the longer of computing and moving bytes.

``trace.cost.roofline("h100-sxm")`` is ``build_roofline``.

Source:
    Williams, Waterman and Patterson, Roofline: an insightful visual performance model,
    Communications of the ACM 52 (4), 2009.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from meta_magic.cost.call_work import Calls, OneCall
from meta_magic.cost.device_table import Device, Peak
from meta_magic.trace.signature import Phase

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.costs import Cost


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
