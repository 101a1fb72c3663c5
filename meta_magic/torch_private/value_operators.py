"""Operators that copy and read values, which no function is named after."""

from typing import Any, Final

import torch

__all__ = ["copy_to", "read_scalar"]

copy_to: Final[Any] = torch.ops.aten._to_copy.default
"""Without it what a legacy constructor made is real, and meets tensors on meta."""

read_scalar: Final[Any] = torch.ops.aten._local_scalar_dense.default
"""Without it ``torch.FloatTensor([loss])`` fails."""
