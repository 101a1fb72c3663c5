"""The memory of a program at a few recorded sizes, and at sizes between and beyond.

``trace.fit(device, vary={"batch": ...})`` takes a :class:`Sample` at some sizes. Where
the program makes the same calls at every size, and its storages live equally long, the
bytes of each storage are a polynomial of the size, and so are the bytes alive after a
call (:class:`Interpolation`). There is one polynomial for each call; the
peak is the largest of them, which at another size may be another one: so all are
interpolated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import lcm, prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meta_magic.cost.memory_timeline import Memory
from meta_magic.cost.storage_lives import order_stretches

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of one recording, on the device that needs most.

    Attributes:
        program: A hash of the device, the operators in their order, and the calls
            between which each storage is alive. Recordings that differ in sizes alone
            have the same hash.
        live_nbytes: The bytes alive after each call.
        device: An accelerator that the code names, else the only device.
        stretches: The bytes of each stretch of ``Lives``, by storage and start.
    """

    program: bytes
    live_nbytes: tuple[int, ...]
    device: str
    stretches: tuple[int, ...]

    @property
    def peak_nbytes(self) -> int:
        """Most bytes alive after any call."""
        return max(self.live_nbytes, default=0)


def take_sample(trace: "Trace") -> Sample:
    """Return the memory of a recording."""
    memory = trace.memory
    device, lives = find_fullest_device(memory), memory.lives
    return Sample(
        program=hash_program(memory, device),
        live_nbytes=memory.live_by_place.get(device, ()),
        device=device,
        stretches=tuple(lives.nbytes[order_stretches(lives)].tolist()),
    )


def find_fullest_device(memory: Memory) -> str:
    """Return the device that needs most bytes: an accelerator, if one is named."""
    peaks = memory.peak_by_place  # most first
    accelerators = [name for name in peaks if name.partition(":")[0] != "cpu"]
    return next(iter(accelerators or peaks), "cpu")


def hash_program(memory: Memory, device: str) -> bytes:
    """Return the hash of a recording without its sizes; see :class:`Sample`."""
    ops = [signature.op for signature in memory.program.signatures]
    names = "\n".join(ops[number] for number in memory.columns.signature)
    digest = blake2b(f"{device}\n{names}".encode(), digest_size=16)
    lives = memory.lives
    for column in (lives.storage, lives.start, lives.stop, memory.device):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interpolation:
    """A polynomial in the size for each call, by its values at the recorded sizes.

    Attributes:
        sizes: The recorded sizes; one more than the degree.
        live: For each size the bytes alive after each call, as Python integers.
    """

    sizes: tuple[int, ...]
    live: tuple[NDArray[np.object_], ...]

    def live_nbytes(self, size: int) -> list[Fraction]:
        """Return the bytes alive after each call at a size."""
        total, scale = self._add_up(size)
        return [Fraction(nbytes, scale) for nbytes in total]

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes alive after a call, rounded up; 0 for no calls."""
        total, scale = self._add_up(size)
        return int(-(-max(total, default=0) // scale))

    def list_highest(self, least: int) -> list[int]:
        """Return calls that include the peak at each size from ``least`` on.

        They are few: a call is omitted if another one has at least as many bytes at
        the first size, and grows at least as much at each step.
        """
        found = [self._add_up(least + step) for step in range(len(self.sizes))]
        scale = lcm(*(scale for _, scale in found))
        rows = np.array([total * (scale // own) for total, own in found], object)
        differences = []
        while len(rows):
            differences.append(rows[0])
            rows = np.diff(rows, axis=0)
        growth = np.array(differences, np.float64)
        others, highest = np.lexsort(growth)[::-1], []
        while others.size:
            best = others[0]
            highest.append(int(best))
            others = others[(growth[:, others] > growth[:, [best]]).any(axis=0)]
        return sorted(highest)

    def _add_up(self, size: int) -> tuple[NDArray[np.object_], int]:
        """Return the bytes after each call times an integer, and that integer."""
        weights = list(weigh(self.sizes, size))
        scale = lcm(*(weight.denominator for weight in weights))
        total = sum(
            int(weight * scale) * live
            for weight, live in zip(weights, self.live, strict=True)
        )
        return np.asarray(total, object), scale


def weigh(sizes: Sequence[int], size: int) -> Iterator[Fraction]:
    """Yield the weight of each recorded size at another size (Lagrange, exactly)."""
    for one in sizes:
        others = [other for other in sizes if other != one]
        yield Fraction(prod(size - o for o in others), prod(one - o for o in others))


def interpolate(sizes: Sequence[int], live: Sequence[Sequence[int]]) -> Interpolation:
    """Return the polynomials through the recorded bytes; see :class:`Interpolation`."""
    columns = tuple(np.array(row, object) for row in live)
    return Interpolation(sizes=tuple(sizes), live=columns)
