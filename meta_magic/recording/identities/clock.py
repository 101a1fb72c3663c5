"""How many operator calls were recorded so far: what everything else is dated by."""

__all__ = ["Clock"]


class Clock:
    """Counts the operator calls of one recording; the row writer alone moves it.

    Attributes:
        now: Calls recorded so far, which is also the number of the next one.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0
