"""How Python's ``copy``, and torch for it and ``pickle``, make tensors anew."""

import copy
from typing import Final

import torch

__all__ = ["REBUILDING", "RECONSTRUCTING"]

REBUILDING: Final = torch._utils._rebuild_meta_tensor_no_storage.__code__
"""What makes a tensor on meta that was pickled. Without it, and the next, copies of
tensors by ``copy.copy`` and ``pickle`` are without content, and nobody says so."""

RECONSTRUCTING: Final = copy._reconstruct.__code__  # type: ignore[attr-defined]  # not in its stub
