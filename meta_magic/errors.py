"""Errors raised by meta_magic.

* MetaMagicError
  - BudgetError
  - CheckError
  - DeviceTableError
  - ExerciseError
  - MaterializeError
  - MissingValueError
    - ValueLimitError
  - MixedDeviceError
  - ReplayError
  - TrialError
  - UnfinishedTraceError
  - UnknownDeviceError
  - WorldError
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType


class MetaMagicError(Exception):
    """Base class of every error that meta_magic raises on purpose.

    Example:
        >>> try:
        ...     materialize(nn.Linear(3, 4, device="meta"))
        ... except MetaMagicError as error:
        ...     print(type(error).__name__)
        MaterializeError
    """


class BudgetError(MetaMagicError, ValueError):
    """A limit of a budget cannot be read, or names an unknown quantity."""


class CheckError(MetaMagicError):
    """A program of ``meta-magic check`` does not exist or cannot run."""


class DeviceTableError(MetaMagicError, ValueError):
    """A file of devices lacks an entry, or has a text where a number belongs.

    Example:
        >>> add_devices("empty-devices.toml")  # [my-board], without entries
        Traceback (most recent call last):
        meta_magic.errors.DeviceTableError: ...
    """


class ExerciseError(MetaMagicError, ValueError):
    """An exercise is not complete, its solution is refused, or it cannot be graded.

    Example:
        >>> exercise("empty", "a = torch.arange(3)", "", ["x"])
        Traceback (most recent call last):
        meta_magic.errors.ExerciseError: the exercise 'empty' has no solution
    """


class MaterializeError(MetaMagicError):
    """A module cannot be made real; unless the message says so, it is unchanged.

    Attributes:
        target: The storage that cannot be filled, as the planning knows it; None if
            there is no single one.

    Example:
        >>> materialize(nn.Linear(3, 4, device="meta"))  # made outside of a recording
        Traceback (most recent call last):
        meta_magic.errors.MaterializeError: ...
    """

    def __init__(self, text: str, target: object = None) -> None:
        super().__init__(text)
        self.target = target


class MissingValueError(MetaMagicError, RuntimeError):
    """A cell needs a value that cannot be computed, or not within the limits.

    It is a ``RuntimeError``, as torch raises it for the data of a meta tensor.

    Attributes:
        allocated: Numbers of the storages that one call allocated, where the value
            comes from memory that nothing was written to; else empty.

    Example:
        >>> with record():
        ...     torch.ones(2**42).sum().item()  # 16 TiB: beyond the limits
        Traceback (most recent call last):
        meta_magic.errors.ValueLimitError: ...
    """

    allocated: frozenset[int] = frozenset()


class ValueLimitError(MissingValueError):
    """A value would take more than the limits allow.

    Attributes:
        wanted: The fields of ``ValueLimits`` that are too small, with enough for each.
    """

    def __init__(
        self, text: str, wanted: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        super().__init__(text)
        self.wanted = wanted


class MixedDeviceError(MetaMagicError):
    """An operator got a real and a meta tensor, and would write or return garbage.

    Example:
        >>> total = torch.zeros(2)
        >>> with record():
        ...     total += torch.ones(2)  # a real tensor from outside would change
        Traceback (most recent call last):
        meta_magic.errors.MixedDeviceError: ...
    """


class ReplayError(MetaMagicError):
    """A recorded value cannot be replayed.

    Attributes:
        storage: Number of the storage with unknown content; None if there is none.
        refusal: The error of an operator on real tensors; None if there is none.

    Example:
        >>> x = torch.ones(2, device="meta")  # made outside of a recording
        >>> with record() as trace:
        ...     y = x + 1
        >>> replay(trace, trace.ops[-1].outputs)
        Traceback (most recent call last):
        meta_magic.errors.ReplayError: ...
    """

    def __init__(
        self, text: str, storage: int | None = None, refusal: Exception | None = None
    ) -> None:
        super().__init__(text)
        self.storage = storage
        self.refusal = refusal


class NotSentError(ReplayError):
    """A value is what another rank of a world sends, which is not recorded."""


class TrialError(MetaMagicError):
    """A recorded block cannot be run again; the message says why.

    Example:
        >>> with record() as trace:
        ...     x = torch.ones(3)
        >>> trace.fit("xeon-8480")  # a processor, whose memory is not known
        Traceback (most recent call last):
        meta_magic.errors.TrialError: ...
    """


class UnfinishedTraceError(MetaMagicError, AttributeError):
    """A trace was read before its block had ended.

    Example:
        >>> with record() as trace:
        ...     trace.ops
        Traceback (most recent call last):
        meta_magic.errors.UnfinishedTraceError: ...
    """


class UnknownDeviceError(MetaMagicError, LookupError):
    """The peaks of a device are not known.

    Example:
        >>> with record() as trace:
        ...     x = torch.ones(3)
        >>> trace.fit("h1000")
        Traceback (most recent call last):
        meta_magic.errors.UnknownDeviceError: ...
    """


class WorldError(MetaMagicError, RuntimeError):
    """A block asks for a world or a rank that differs from the recorded one.

    Attributes:
        is_hang: Whether a recorded rank waits for another that never sends.

    Example:
        >>> with record(world=8):
        ...     torch.distributed.init_process_group("gloo", rank=0, world_size=4)
        Traceback (most recent call last):
        meta_magic.errors.WorldError: ...
    """

    def __init__(self, text: str, *, is_hang: bool = False) -> None:
        super().__init__(text)
        self.is_hang = is_hang


def hint_at(word: object, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word nearest to an unknown one."""
    near = get_close_matches(str(word), [*known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
