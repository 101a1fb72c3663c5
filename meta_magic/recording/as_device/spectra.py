"""Singular values and eigenvalues, which the CPU computes without vectors if it can.

And ranks, which torch counts in another tensor than ``out=`` where a mode looks on.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.torch_private.dispatcher import (
    DispatchKey,
    eigenvalues,
    run_kernel,
    singular_values,
    symmetric_eigenvalues,
)

__all__ = ["RANKS", "eigvals", "eigvalsh", "needs_gradient", "svdvals"]

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


def matrix_rank(overload: str, _: object, *args: Any, out: Tensor, **given: Any) -> Any:
    """Count singular values that are no zeros, into ``out``.

    Source:
        ``matrix_rank_impl`` in ``LinearAlgebra.cpp`` of torch 2.13: where a mode looks
        on, it leaves what it was given as it was, and returns another tensor.
    """
    operator = getattr(aten.linalg_matrix_rank, overload)
    key = DispatchKey.CompositeImplicitAutograd
    made = run_kernel(operator, key, args, {**given, "out": out})
    return out if made is out else out.copy_(made)


RANKS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        f"linalg_matrix_rank.{overload}": partial(matrix_rank, overload)
        for overload in (
            "out",
            "out_tol_tensor",
            "atol_rtol_float_out",
            "atol_rtol_tensor_out",
        )
    }
)
"""By the operator's name."""
