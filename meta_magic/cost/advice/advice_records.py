"""What is advised, and what proves it."""

from dataclasses import dataclass

from meta_magic.trace.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The block was recorded again, as it is and with a choice made otherwise.

    Attributes:
        choice: What was chosen, such as ``fused``.
        before_nbytes: Bytes at the peak as the block is, on the device that holds most.
        after_nbytes: Bytes at the peak with the choice.
    """

    choice: str
    before_nbytes: int
    after_nbytes: int

    @property
    def saved_nbytes(self) -> int:
        """By how much the peak is lower."""
        return self.before_nbytes - self.after_nbytes

    def __str__(self) -> str:
        before, after = map(format_bytes, (self.before_nbytes, self.after_nbytes))
        return f"{before} at the peak, {after} with {self.choice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something that a program does in vain, or could do for less.

    Attributes:
        kind: Short name of what was looked for, such as ``copy``.
        text: One line: what happens, and what would mend it.
        lines: Lines of the cell where it happens, rising.
        nbytes: Bytes of the storages that need not be.
        peak_nbytes: By how much lower the peak would be without them, on the device
            that holds most.
        flops: FLOPs that need not be; those that it costs where they are negative.
        choice: What mends it when the block is recorded again, in a word; None where
            only other code would.
        places: Indexes into the program's places: of the calls that the choice changes.
        proof: What was recorded again, and what that saved; None where nothing was.
        unproven: Why there is no proof, so that what is saved is only computed; None
            where it was not asked for, or is there.
    """

    kind: str
    text: str
    lines: tuple[int, ...]
    nbytes: int = 0
    peak_nbytes: int = 0
    flops: int = 0
    choice: str | None = None
    places: tuple[int, ...] = ()
    proof: Proof | None = None
    unproven: str | None = None

    def __str__(self) -> str:
        where = ", ".join(map(str, self.lines))
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.kind}: {self.text}" + (f" ({word} {where})" if where else "")
