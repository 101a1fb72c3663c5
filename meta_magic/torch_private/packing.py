"""Functions of packed sequences, which nobody calls by these names."""

from typing import Any, Final

import torch

__all__ = ["pack_padded", "pad_packed"]

pack_padded: Final[Any] = torch._C._VariableFunctions._pack_padded_sequence
"""Without it and the next one ``pack_padded_sequence`` refuses lengths on meta."""

pad_packed: Final[Any] = torch._C._VariableFunctions._pad_packed_sequence
