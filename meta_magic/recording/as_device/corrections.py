"""Return the CPU's metadata where torch's meta kernel refuses and the CPU does not.

Without this ``optim.SGD(..., fused=True)`` of a large model would fail on meta;
``cpu_kernels`` asks the CPU about a call of up to 256 MiB. A correction runs only after
torch's own kernel failed, so it does no harm when torch is mended. An operator that
torch *answers* on meta, but differently from a device, belongs into ``adjustments``.
``tests/conformance/test_corrections.py`` compares each correction with the CPU, and
fails when it is no longer needed. ``CORRECTIONS`` is the table.
``SHORT_KERNELS`` are replacements of correct but slow kernels.
"""

from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from meta_magic.torch_private.distributed import make_finished_work


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,  # noqa: ARG001  the schema's
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply groups of matrices.

    Shape:
        ``(m, k) @ (g, k, n)`` is ``(m, n)``, ``(g, m, k) @ (k, n)`` is ``(m, n)``,
        ``(m, k) @ (k, n)`` is ``(g, m, n)`` with one group for each of ``offs``, and
        ``(g, m, k) @ (g, k, n)`` is ``(g, m, n)``.

    Source:
        torch 2.13 on meta: "Expected inputs of BF16 type"; the CPU takes others.
    """
    is_matrix = a.ndim == 2, b.ndim == 2  # noqa: PLR2004
    n_groups = len(offs) if offs is not None and all(is_matrix) else a.shape[0]
    leading = () if any(is_matrix) and not all(is_matrix) else (n_groups,)
    shape = (*leading, a.shape[-2], b.shape[-1])
    return torch.empty(shape, dtype=out_dtype or a.dtype, device="meta")


def arange(start: float, end: float, step: float = 1, **options: Any) -> Tensor | Any:
    """Return integers in steps of less than one; ``NotImplemented`` for other steps.

    Source:
        ``arange_out`` in ``aten/src/ATen/native/RangeFactories.cpp`` of torch 2.13: the
        CPU counts them before it rounds the step, except for int64.
    """
    dtype = options.get("dtype")
    is_narrow = dtype is not None and not dtype.is_floating_point
    if not is_narrow or dtype is torch.int64 or not step or int(step):
        return NotImplemented
    return torch.empty(ceil((end - start) / step), dtype=dtype, device="meta")


CORRECTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten._grouped_mm.default": grouped_mm,
        "aten.arange.start_step": arange,
        "aten._ctc_loss_backward.default": lambda _, a, *__, **___: a.new_empty(
            a.shape
        ),
        # They write their arguments, and return nothing.
        "aten._fused_sgd_.default": lambda *_, **__: None,
        "aten._fused_adagrad_.default": lambda *_, **__: None,
        "aten._to_dense.default": lambda a, dtype=None, **_: torch.empty(
            a.shape, dtype=dtype or a.dtype, device="meta"
        ),
    }
)
"""By the operator's name. Torch 2.13 has no meta kernel for those with a lambda."""


# Kernels of torch that are right and slow

PLAIN: Final = (Tensor, Parameter)


def multiply_and_add(bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Return the result of ``addmm``: a new tensor in rows, whatever the strides.

    Unusual or wrong arguments are left to torch's own kernel.

    Source:
        ``aten/src/ATen/native/LinearAlgebra.cpp`` of torch 2.13. Meta runs the one of
        ``torch/_decomp/decompositions.py``, which takes 0.4 ms for the same result.
    """
    is_usual = (
        all(type(given) in PLAIN and given.is_meta for given in (bias, a, b))
        and (a.dim(), b.dim(), bias.dim()) == (2, 2, 1)
        and a.shape[1] == b.shape[0]
        and bias.shape[0] in {1, b.shape[1]}
        and bias.dtype is a.dtype is b.dtype
        and a.is_floating_point()
    )
    if not is_usual:
        return torch.ops.aten.addmm.default(bias, a, b, **scales)
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="meta")


def return_and_finish(tensors: list[Tensor], *_: Any) -> Any:
    """Return the tensors of a collective, and a handle that holds them."""
    return tensors, make_finished_work(list(tensors))


def finish(tensors: list[Tensor], *_: Any) -> Any:
    """Return a handle, which holds the tensors of a collective or message."""
    return make_finished_work(list(tensors))


SHORT_KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten.addmm.default": multiply_and_add,
        # On a device it wraps its argument; torch's meta kernel makes a new tensor.
        "_c10d_functional._wrap_tensor_autograd.default": torch.ops.aten.alias.default,
        # DDP takes the tensors from the handle; torch's meta kernel gives an empty one.
        "c10d.allreduce_.default": return_and_finish,
        "c10d.broadcast_.default": return_and_finish,
        "c10d.allreduce_coalesced_.default": finish,
        # The tensor of a message must live until the process waits for the message.
        "c10d.send.default": finish,
        "c10d.recv_.default": finish,
    }
)
"""Short kernels by the operator's name."""
