"""What a recording knows beyond metadata: values, assumed sizes, chosen kernels."""

from typing import Final, NamedTuple

__all__ = ["LIMITS", "Assumption", "Evaluation", "KernelChoice", "ValueLimits"]


class ValueLimits(NamedTuple):
    """What the value of a tensor may take.

    Attributes:
        nbytes: Bytes held at any moment.
        flops: Floating-point operations.
    """

    nbytes: int = 64 * 2**20
    flops: int = 10**10


LIMITS: Final = ValueLimits()


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
