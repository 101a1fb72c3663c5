"""The memory of one recording of a program, to be compared with that at other sizes."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.memory_timeline import Memory
from meta_magic.cost.storage_lives import order_stretches

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["Sample", "take_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The memory of one recording, on the device where most is needed.

    Attributes:
        program: A hash of the device, of which operators were called in which order,
            and of which storages lived from when to when; it is the same where sizes
            alone differ.
        live_nbytes: The bytes that lived after each call.
        place: The device: an accelerator that the code names, else the one that all
            lies on.
        stretches: The bytes of each stretch of calls through which a storage has so
            many, in order of storage and start.
    """

    program: bytes
    live_nbytes: tuple[int, ...]
    place: str
    stretches: tuple[int, ...]

    @property
    def peak_nbytes(self) -> int:
        """Most bytes that lived after any call."""
        return max(self.live_nbytes, default=0)


def take_sample(trace: "Trace") -> Sample:
    """Return the memory of a recording."""
    memory = trace.memory
    place, lives = find_accelerator(memory), memory.account.lives
    return Sample(
        program=hash_program(memory, place),
        live_nbytes=memory.live_by_place.get(place, ()),
        place=place,
        stretches=tuple(lives.nbytes[order_stretches(lives)].tolist()),
    )


def find_accelerator(memory: Memory) -> str:
    """Return the device that is to hold most: an accelerator, if any is named."""
    peaks = memory.peak_by_place  # most first
    accelerators = [place for place in peaks if place.partition(":")[0] != "cpu"]
    return next(iter(accelerators or peaks), "cpu")


def hash_program(memory: Memory, place: str) -> bytes:
    """Return what two recordings have in common that differ in sizes alone."""
    account = memory.account
    ops = [signature.op for signature in account.program.signatures]
    names = "\n".join(ops[number] for number in account.columns.signature)
    digest = blake2b(f"{place}\n{names}".encode(), digest_size=16)
    lives = account.lives
    for column in (lives.storage, lives.start, lives.stop, account.place):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()
