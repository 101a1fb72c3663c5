"""What an optimizer that takes all parameters at once holds besides its states."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence

__all__ = ["find_foreach_temporaries"]

FOREACH: Final = "aten._foreach_"

LEAST_SHARE: Final = 0.01
"""Of the peak, that is worth a word."""


def find_foreach_temporaries(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if temporaries of all parameters are alive at the peak."""
    is_foreach = evidence.calls_of(lambda s: s.op.startswith(FOREACH))
    is_step = is_foreach & evidence.is_in("optimizer")
    is_temporary = evidence.is_of("temporary") & (evidence.maker >= 0)
    storages = np.flatnonzero(is_temporary & is_step[evidence.maker])
    saved = evidence.save_without(storages)
    if saved >= LEAST_SHARE * evidence.peak_nbytes > 0:
        makers = np.unique(evidence.maker[storages])
        yield Advice(
            kind="foreach",
            text="the optimizer takes all parameters at once, and its temporaries "
            f"raise the peak by {format_bytes(saved)}; with fused=True it has none, "
            "with foreach=False one parameter's",
            lines=evidence.lines_of(makers.tolist()),
            nbytes=int(evidence.nbytes[storages].sum()),
            peak_nbytes=saved,
            choice="fused",
        )
