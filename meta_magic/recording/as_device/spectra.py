"""Singular values and eigenvalues, which the CPU computes without vectors if it can."""

import torch
from torch import Tensor

from meta_magic.torch_private.composite_operators import (
    eigenvalues,
    singular_values,
    symmetric_eigenvalues,
)

__all__ = ["eigvals", "eigvalsh", "needs_gradient", "svdvals"]

aten = torch.ops.aten


def needs_gradient(a: Tensor) -> bool:
    """Whether autograd records what is done with a tensor."""
    return torch.is_grad_enabled() and a.requires_grad


def svdvals(_: object, a: Tensor, *, driver: str | None = None) -> Tensor:
    """Return singular values; the vectors are computed where a gradient needs them.

    Source:
        ``linalg_svdvals`` and ``linalg_eigvalsh`` in ``BatchLinearAlgebra.cpp`` of
        torch 2.13: where a mode looks on, they always are.
    """
    values: Tensor = singular_values(
        a, full_matrices=False, compute_uv=needs_gradient(a), driver=driver
    )[1]
    return values


def eigvalsh(_: object, a: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803  the schema's
    """Return eigenvalues. Source: as above."""
    values: Tensor = symmetric_eigenvalues(a, UPLO, compute_v=needs_gradient(a))[0]
    return values


def eigvals(_: object, a: Tensor) -> Tensor:
    """Return eigenvalues. Source: as above."""
    if needs_gradient(a):
        values: Tensor = aten.linalg_eig(a)[0]
    else:
        values = eigenvalues(a)
    return values
