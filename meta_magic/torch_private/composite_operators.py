"""The operators that others are made of on the CPU.

Without the first three linear algebra rounds otherwise than on the CPU; without the
last a loss over sequences is made of lengths that nobody knows.
"""

from typing import Final

import torch

__all__ = [
    "eigenvalues",
    "loss_of_sequences",
    "singular_values",
    "symmetric_eigenvalues",
]

singular_values: Final = torch.ops.aten._linalg_svd
symmetric_eigenvalues: Final = torch.ops.aten._linalg_eigh
eigenvalues: Final = torch.ops.aten._linalg_eigvals
loss_of_sequences: Final = torch.ops.aten._ctc_loss
