"""Errors raised by meta_magic.

* MetaMagicError
  - MixedDeviceError
  - UnfinishedTraceError
"""

__all__ = ["MetaMagicError", "MixedDeviceError", "UnfinishedTraceError"]


class MetaMagicError(Exception):
    """Base class of every error that meta_magic raises on purpose."""


class MixedDeviceError(MetaMagicError):
    """A real and a meta tensor met in an operator that would return garbage."""


class UnfinishedTraceError(MetaMagicError, AttributeError):
    """A trace was asked before the block that it records had ended."""
