"""Errors raised by meta_magic.

* MetaMagicError
  - BudgetError
  - CheckError
  - DeviceTableError
  - MaterializeError
  - MissingValueError
    - ValueLimitError
  - MixedDeviceError
  - ReplayError
  - TrialError
  - UnfinishedTraceError
  - UnknownDeviceError
"""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "BudgetError",
    "CheckError",
    "DeviceTableError",
    "MaterializeError",
    "MetaMagicError",
    "MissingValueError",
    "MixedDeviceError",
    "ReplayError",
    "TrialError",
    "UnfinishedTraceError",
    "UnknownDeviceError",
    "ValueLimitError",
]


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
    """A limit of a budget is none, or of a quantity that is not known."""


class CheckError(MetaMagicError):
    """What is to be checked is not there, or cannot be run; the message says why."""


class DeviceTableError(MetaMagicError, ValueError):
    """A file of devices lacks something, or has what is no number.

    Example:
        >>> add_devices("empty-devices.toml")  # [my-board], and nothing of it
        Traceback (most recent call last):
        meta_magic.errors.DeviceTableError: ...
    """


class MaterializeError(MetaMagicError):
    """A module cannot be made real as asked; unless it says so, nothing was changed.

    Attributes:
        target: The storage that it is about, as the planning knows it; None if it is
            about no single one.

    Example:
        >>> materialize(nn.Linear(3, 4, device="meta"))  # made outside of a recording
        Traceback (most recent call last):
        meta_magic.errors.MaterializeError: ...
    """

    def __init__(self, text: str, target: object = None) -> None:
        super().__init__(text)
        self.target = target


class MissingValueError(MetaMagicError, RuntimeError):
    """A cell asked for the value of a tensor that cannot be computed, or not cheaply.

    A ``RuntimeError``, as torch's own is when a meta tensor is asked for its data.

    Example:
        >>> with record():
        ...     torch.ones(2**42).sum().item()  # 16 TiB: beyond the limits
        Traceback (most recent call last):
        meta_magic.errors.ValueLimitError: ...
    """


class ValueLimitError(MissingValueError):
    """A value would take more than the limits allow.

    Attributes:
        wanted: What the fields of ``ValueLimits`` would have to be that are too small.
    """

    def __init__(
        self, text: str, wanted: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        super().__init__(text)
        self.wanted = wanted


class MixedDeviceError(MetaMagicError):
    """A real and a meta tensor met in an operator that would return garbage.

    Example:
        >>> total = torch.zeros(2)
        >>> with record():
        ...     total += torch.ones(2)  # a real tensor from outside would change
        Traceback (most recent call last):
        meta_magic.errors.MixedDeviceError: ...
    """


class ReplayError(MetaMagicError):
    """A recorded value cannot be made again.

    Attributes:
        storage: Number of the storage whose content is unknown, None if it is not one.
        refusal: What an operator of torch's raised of real tensors; None if none did.

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
    """A trace was asked before the block that it records had ended.

    Example:
        >>> with record() as trace:
        ...     trace.ops
        Traceback (most recent call last):
        meta_magic.errors.UnfinishedTraceError: ...
    """


class UnknownDeviceError(MetaMagicError, LookupError):
    """What a device computes and moves in a second is not known.

    Example:
        >>> with record() as trace:
        ...     x = torch.ones(3)
        >>> trace.fit("h1000")
        Traceback (most recent call last):
        meta_magic.errors.UnknownDeviceError: ...
    """
