"""What lives when, on the wire: a row for each stretch of calls with the same bytes.

All that the Memory view shows follows from them, and is worked out in the browser
(``static/memory/lives.js``).
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from meta_magic.cost.memory_samples import find_accelerator
from meta_magic.cost.storage_categories import CATEGORIES
from meta_magic.cost.storage_lives import order_stretches
from meta_magic.view.wire import Table, as_differences

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["memory_payload"]


def memory_payload(trace: "Trace") -> dict[str, Any]:
    """Return the lives of all storages as columns.

    Returns:
        ``categories`` and ``places``: names. For each stretch, in order of storage and
        start: ``storage`` and ``start`` (call) as steps from the stretch before,
        ``length`` (calls; 0 for one that outlived them all), and ``nbytes``,
        ``category`` and ``place`` as indices into ``sizes``, ``categories`` and
        ``places``. ``accelerator``: the name of the place that is to hold most.
    """
    memory, account = trace.memory, trace.memory.account
    lives, n_calls = account.lives, account.columns.n_calls
    order = order_stretches(lives)
    storage, start, stop = lives.storage[order], lives.start[order], lives.stop[order]
    sizes: Table[int] = Table(int)
    distinct, number = np.unique(lives.nbytes[order], return_inverse=True)
    return {
        "categories": [*CATEGORIES],
        "places": [*account.places],
        "accelerator": find_accelerator(memory),
        "storage": as_differences(storage),
        "start": as_differences(start),
        "length": np.where(stop >= n_calls, 0, stop - start).tolist(),
        "nbytes": sizes.all_of(distinct.tolist(), number),
        "sizes": sizes.rows,
        "category": account.category[storage].tolist(),
        "place": account.place[storage].tolist(),
    }
