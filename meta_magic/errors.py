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
    """Base class of every error that meta_magic raises on purpose."""


class BudgetError(MetaMagicError, ValueError):
    """A limit of a budget is none, or of a quantity that is not known."""


class CheckError(MetaMagicError):
    """What is to be checked is not there, or cannot be run; the message says why."""


class DeviceTableError(MetaMagicError, ValueError):
    """A file of devices lacks something, or has what is no number."""


class MaterializeError(MetaMagicError):
    """A module cannot be made real as asked; unless it says so, nothing was changed."""


class MissingValueError(MetaMagicError, RuntimeError):
    """A cell asked for the value of a tensor that cannot be computed, or not cheaply.

    A ``RuntimeError``, as torch's own is when a meta tensor is asked for its data.
    """


class ValueLimitError(MissingValueError):
    """A value would take more than the limits allow."""


class MixedDeviceError(MetaMagicError):
    """A real and a meta tensor met in an operator that would return garbage."""


class ReplayError(MetaMagicError):
    """A recorded value cannot be made again.

    Attributes:
        storage: Number of the storage whose content is unknown, None if it is not one.
        refusal: What an operator of torch's raised of real tensors; None if none did.
    """

    def __init__(
        self, text: str, storage: int | None = None, refusal: Exception | None = None
    ) -> None:
        super().__init__(text)
        self.storage = storage
        self.refusal = refusal


class TrialError(MetaMagicError):
    """A recorded block cannot be run again; the message says why."""


class UnfinishedTraceError(MetaMagicError, AttributeError):
    """A trace was asked before the block that it records had ended."""


class UnknownDeviceError(MetaMagicError, LookupError):
    """What a device computes and moves in a second is not known."""
