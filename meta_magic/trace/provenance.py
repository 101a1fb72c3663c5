"""What a recording knows beyond metadata: values, assumed sizes, chosen kernels."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch

__all__ = [
    "LIMITS",
    "LITTLE_NBYTES",
    "N_VALUES",
    "Assumption",
    "Constant",
    "Evaluation",
    "KernelChoice",
    "ValueLimits",
]

LITTLE_NBYTES: Final = 64 * 2**20
LITTLE_FLOPS: Final = 10**10
"""What a value may take on any machine that nobody waits for."""


class ValueLimits(NamedTuple):
    """What the value of a tensor may take that a block asks for.

    Attributes:
        nbytes: Bytes held at any moment, with what is kept for later values; None for
            a quarter of the memory that is free.
        flops: Floating-point operations; None for what ``seconds`` allow.
        seconds: About how long it takes on this machine; all values of a recording
            take at most six times as long.

    Example:
        >>> with record(limits=ValueLimits(seconds=120)):
        ...     n = torch.ones(10_000, 10_000).sum().item()
    """

    nbytes: int | None = None
    flops: int | None = None
    seconds: float = 10.0

    def little(self, share: int = 1) -> "ValueLimits":
        """Return what a value may take that nobody waits for.

        Args:
            share: What part of it, where several are computed at once.
        """
        nbytes = LITTLE_NBYTES if self.nbytes is None else self.nbytes
        flops = LITTLE_FLOPS if self.flops is None else self.flops
        return ValueLimits(nbytes // share, flops // share, self.seconds)


LIMITS: Final = ValueLimits()

N_VALUES: Final = 6
"""All values of a recording may take as long as so many that take the most."""


class Evaluation(NamedTuple):
    """An operator call that was answered with real values: a replay of what it reads.

    From there on the trace depends on data, not just on metadata.

    Attributes:
        call: Its number.
        n_calls: Calls that were run for it.
        nbytes: Most bytes that they held at any moment.
        flops: Floating-point operations that they took; one for each element of an
            output where torch has no formula.
    """

    call: int
    n_calls: int
    nbytes: int
    flops: int


class Assumption(NamedTuple):
    """An operator call whose size or value was assumed: it depends on what is unknown.

    Attributes:
        call: Its number.
        n_true: How many elements are taken to be true, spread evenly; or what numbers
            add up to, as evenly.
        numel: Of how many.
        text: What the user assumed, such as ``nonzero=all``.
        value: What each number is taken to be; None if ``n_true`` says it.
    """

    call: int
    n_true: int
    numel: int
    text: str
    value: float | None = None


class KernelChoice(NamedTuple):
    """Which kernel a device would choose for some operator calls.

    Attributes:
        first_op: Number of the first call.
        end_op: Number after the last.
        text: The choice, with the reason where it is not a fused kernel.
    """

    first_op: int
    end_op: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A storage whose content no recorded operator made, as it was when first met.

    Attributes:
        storage: Number of the storage.
        data: Its bytes; None if they are too many to be copied.
        checksum: CRC-32 of its bytes; 0 where ``data`` is there.
        tensor: The storage itself where ``data`` is None, as bytes: the one thing of
            the user's that a trace keeps alive.
        name: How the block calls it; None where it has no name, or was not asked.
        sparse: A copy of the sparse tensor whose values the storage has; None if it
            is that of a dense one.
    """

    storage: int
    data: bytes | None
    checksum: int = 0
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    name: str | None = None
    sparse: torch.Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        if self.data is not None:
            return len(self.data)
        return 0 if self.tensor is None else self.tensor.numel()
