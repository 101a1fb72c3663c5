"""The records of ``trace.advice``: an advice, and its proof."""

from dataclasses import dataclass

from meta_magic.trace.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the block recorded again needs, as it is and with one change.

    Attributes:
        choice: The change, such as ``fused``.
        before_nbytes: Bytes at the peak without it, on the device that needs most.
        after_nbytes: Bytes at the peak with it.
        before_seconds: Estimated seconds of communication without it, in a world.
        after_seconds: The same with it.
    """

    choice: str
    before_nbytes: int
    after_nbytes: int
    before_seconds: float = 0.0
    after_seconds: float = 0.0

    @property
    def saved_nbytes(self) -> int:
        """Bytes by which the peak is lower."""
        return self.before_nbytes - self.after_nbytes

    def __str__(self) -> str:
        before, after = map(format_bytes, (self.before_nbytes, self.after_nbytes))
        if self.before_seconds == self.after_seconds:
            return f"{before} at the peak, {after} with {self.choice}"
        one, other = (s * 1e6 for s in (self.before_seconds, self.after_seconds))
        return (
            f"{before} at the peak and {one:,.0f} us of communication, {after} and "
            f"{other:,.0f} us with {self.choice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Work or memory of a program that is wasted, or could be less.

    Attributes:
        kind: Short name of the rule, such as ``copy``.
        text: One line: what happens, and how to prevent it.
        lines: Lines of the cell where it happens, in order.
        nbytes: Bytes of the storages that are not needed.
        peak_nbytes: Bytes by which the peak of the fullest device would be lower.
        flops: FLOPs that are not needed; negative if the advice costs FLOPs.
        seconds: Estimated seconds of communication that are not needed.
        choice: The change to record the block again with; None if that cannot help.
        call_sites: The calls that the choice changes, as in ``Program.call_sites``.
        proof: The peaks with and without the choice; None if nothing was recorded.
        unproven: Why there is no proof, so that the saving is only computed; None if
            there is one, or none was asked for.
    """

    kind: str
    text: str
    lines: tuple[int, ...]
    nbytes: int = 0
    peak_nbytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    choice: str | None = None
    call_sites: tuple[int, ...] = ()
    proof: Proof | None = None
    unproven: str | None = None

    def __str__(self) -> str:
        where = ", ".join(map(str, self.lines))
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.kind}: {self.text}" + (f" ({word} {where})" if where else "")
