"""Let Python's garbage collector rest while objects are built that all stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector"]


@contextmanager
def paused_collector(*, ages: bool = False) -> Iterator[None]:
    """Have no garbage looked for within, if it was before.

    Each look takes time for all objects that were made so far; of millions, as much as
    they took to build.

    Args:
        ages: Whether all count as old afterwards, which are looked at most rarely.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if ages and not gc.get_freeze_count():  # what the user froze is to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
