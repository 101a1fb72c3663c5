"""The cost of each call as a table."""

from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.program_columns import PHASES

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.costs import Cost

__all__ = ["build_cost_table"]

COUNTS = ("flops", "flops_needed", "n_elementwise", "nbytes_read", "nbytes_written")


def build_cost_table(cost: "Cost") -> "pd.DataFrame":
    """Return one row per call; see ``Cost.to_pandas``."""
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    numbers = cost.signature
    names = [lineage[0] if lineage else None for lineage in cost.lineages]
    words = {
        "op": np.array([one.op for one in cost.each], object)[numbers],
        "phase": np.array(PHASES, object)[cost.phase],
        "module": np.array([*names, None], object)[cost.module],
        "kind": np.array([one.kind for one in cost.each], object)[numbers],
    }
    counts = {
        name: np.array([getattr(one, name) for one in cost.each], np.int64)[numbers]
        for name in COUNTS
    }
    frame = pd.DataFrame(words | counts)
    nbytes = frame["nbytes_read"] + frame["nbytes_written"]
    frame["intensity"] = (frame["flops"] / nbytes).where(nbytes > 0)
    return frame
