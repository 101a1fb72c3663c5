"""Which plan holds on a thread: types that stand for torch's have to ask for it.

They are made once, not for each recording, as making twenty of them is felt.
"""

import threading
from collections import defaultdict

from meta_magic.recording.identities.device_plan import DevicePlan

__all__ = ["PlanHere", "plan_here"]

plans: defaultdict[int, list[DevicePlan]] = defaultdict(list)


class PlanHere:
    """Context manager within which a plan holds on this thread.

    Args:
        plan: Knows where the code wants what.
    """

    def __init__(self, plan: DevicePlan) -> None:
        self._plan = plan
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        plans[self._thread].append(self._plan)

    def __exit__(self, *_: object) -> None:
        plans[self._thread].remove(self._plan)
        if not plans[self._thread]:
            del plans[self._thread]


def plan_here() -> DevicePlan | None:
    """Return the plan that holds on this thread, or None if nothing is recorded."""
    found = plans.get(threading.get_ident())
    return found[-1] if found else None
