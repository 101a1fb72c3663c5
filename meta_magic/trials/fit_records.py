"""Whether a block fits a device, and how its peak grows with its sizes: the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from meta_magic.cost.memory_samples import Interpolation
from meta_magic.errors import TrialError
from meta_magic.trace.units import format_bytes

__all__ = ["Fit", "Remedy", "SizeFit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFit:
    """How the peak grows with one size, the others as they are.

    Attributes:
        name: What the size is called in the block.
        current: Its value there.
        least: The smallest one that was asked about.
        largest: The largest one that fits; 0 if none does.
        recorded: (size, bytes at the peak) of all recordings that it stands on.
        interpolation: The bytes of each call at any size; None where programs differ
            by size, so that each size was recorded that is spoken of.
    """

    name: str
    current: int
    least: int
    largest: int
    recorded: tuple[tuple[int, int], ...]
    interpolation: Interpolation | None = field(default=None, repr=False, compare=False)

    @property
    def confirmed(self) -> bool:
        """Whether the block was recorded at the largest size, if any fits."""
        return not self.largest or self.largest in dict(self.recorded)

    @property
    def nbytes_per_unit(self) -> int | None:
        """Bytes that one more adds to the peak, at the largest size that fits.

        At the least one if none does; None where programs differ by size.
        """
        if self.interpolation is None:
            return None
        size, peak_nbytes = self.largest or self.least, self.interpolation.peak_nbytes
        return peak_nbytes(size + 1) - peak_nbytes(size)

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes that live at once, at any size.

        Raises:
            TrialError: Programs differ by size, and this one was not recorded.
        """
        known = dict(self.recorded)
        if size in known:
            return known[size]
        if self.interpolation is None:
            raise TrialError(f"{self.name}={size} was not recorded")
        return self.interpolation.peak_nbytes(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Choices under which a block was recorded that does not fit without.

    Attributes:
        choices: They, beside those made anyway.
        peak_nbytes: Most bytes that live at once then.
    """

    choices: tuple[str, ...]
    peak_nbytes: int

    def __str__(self) -> str:
        return f"{format_bytes(self.peak_nbytes)} with {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a block fits a device.

    Attributes:
        device: The name of the device.
        nbytes: Bytes of its memory.
        place: Which of the block's devices it stands for.
        peak_nbytes: Most bytes that live there at once, as recorded.
        sizes: How that grows with each size that was asked for, by its name.
        choices: What was chosen otherwise than the block does.
        remedies: What else was tried where nothing fits: choices that are enough, or
            that need least; none unless it was asked for.
    """

    device: str
    nbytes: int
    place: str
    peak_nbytes: int
    sizes: Mapping[str, SizeFit]
    choices: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it fits as recorded."""
        return self.peak_nbytes <= self.nbytes

    @property
    def largest(self) -> dict[str, int]:
        """By name the largest size that fits, the others as they are."""
        return {name: size.largest for name, size in self.sizes.items()}

    @property
    def confirmed(self) -> bool:
        """Whether each answer was recorded."""
        return all(size.confirmed for size in self.sizes.values())

    def __str__(self) -> str:
        verb = "fits" if self.fits else "does not fit"
        peak, room = format_bytes(self.peak_nbytes), format_bytes(self.nbytes)
        chosen = f" with {', '.join(self.choices)}" if self.choices else ""
        lines = [f"{peak} at the peak{chosen} {verb} {self.device} ({room})"]
        for size in self.sizes.values():
            at = ", ".join(str(n) for n, _ in size.recorded)
            how = "interpolated" if size.interpolation else "searched"
            how += f" from recordings at {at}" if size.confirmed else ", not confirmed"
            lines.append(f"  {size.name} = {size.current}: {say_largest(size)} ({how})")
        if self.remedies:
            enough = self.remedies[0].peak_nbytes <= self.nbytes
            tried = ", or ".join(str(remedy) for remedy in self.remedies)
            lines.append(f"  it would fit: {tried}" if enough else f"  still {tried}")
        return "\n".join(lines)


def say_largest(size: SizeFit) -> str:
    """Return in words which size fits, and what one more needs."""
    if size.largest:
        text = f"at most {size.largest}"
    else:
        least = format_bytes(size.peak_nbytes(size.least))
        text = f"none fits, {size.least} takes {least}"
    one_more = size.nbytes_per_unit
    return (
        text if one_more is None else f"{text}, {format_bytes(one_more)} for one more"
    )
