"""What torch's meta kernels refuse and the CPU does not, or answer as no device does.

``CORRECTIONS`` are asked only where torch's own kernel has raised, so that an entry
does no harm once torch is right, and ``ANSWERS`` where the kernels of a device are
wanted. ``tests/conformance/test_corrections.py`` compares each with the CPU and says
when it can go.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.torch_private import suggest_memory_format

__all__ = ["ANSWERS", "CORRECTIONS"]


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
        torch 2.13 on meta: "Expected inputs of BF16 type", which the CPU does not ask
        for; right again in torch 2.15.
    """
    is_matrix = a.ndim == 2, b.ndim == 2  # noqa: PLR2004
    n_groups = len(offs) if offs is not None and all(is_matrix) else a.shape[0]
    leading = () if any(is_matrix) and not all(is_matrix) else (n_groups,)
    shape = (*leading, a.shape[-2], b.shape[-1])
    return torch.empty(shape, dtype=out_dtype or a.dtype, device="meta")


def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of matrices, column by column, and their scales.

    Source:
        torch 2.13 has no meta kernel, but for the ``out=`` of this operator.
    """
    *batch, n_rows, n_columns = a.shape
    factors = a.new_empty((*batch, n_columns, n_rows)).mT
    return factors, a.new_empty((*batch, min(n_rows, n_columns)))


def histogram_by_count(a: Tensor, bins: int, **_: object) -> tuple[Tensor, Tensor]:
    """Return counts and edges. Source: torch 2.13 has no meta kernel."""
    return a.new_empty(bins), a.new_empty(bins + 1)


def histogram_by_edges(a: Tensor, bins: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Return counts and edges. Source: torch 2.13 has no meta kernel."""
    return a.new_empty(len(bins) - 1), torch.empty_like(bins)


def histogramdd_edges(a: Tensor, bins: list[int], **_: object) -> list[Tensor]:
    """Return the edges along each dimension. Source: as above."""
    return [a.new_empty(n + 1) for n in bins]


def histogramdd_by_edges(a: Tensor, bins: list[Tensor], **_: object) -> Tensor:
    """Return counts in boxes. Source: as above."""
    return a.new_empty([len(edges) - 1 for edges in bins])


def histogramdd_by_counts(a: Tensor, bins: list[int], **_: object) -> Tensor:
    """Return counts in boxes. Source: as above."""
    return a.new_empty(bins)


def to_sparse(a: Tensor, **options: Any) -> Any:
    """Return coordinates of no elements; ``NotImplemented`` for other sparse layouts.

    How many there are depends on data, and a sparse tensor on meta has none: torch's
    own ``to("meta")`` of one leaves them out, too.

    Source:
        torch 2.13 has no meta kernel.
    """
    if options.get("layout") not in {None, torch.sparse_coo} or options.get(
        "blocksize"
    ):
        return NotImplemented
    return to_sparse_dim(a, a.ndim - (options.get("dense_dim") or 0))


def to_sparse_dim(a: Tensor, sparse_dim: int) -> Tensor:
    """Return coordinates of no elements. Source: as above."""
    made: Tensor = torch.ops.aten._sparse_coo_tensor_with_dims(
        *(sparse_dim, a.ndim - sparse_dim, a.shape),
        dtype=a.dtype,
        layout=torch.sparse_coo,
        device="meta",
    )
    return made


def to_dense(a: Tensor, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Return a strided tensor. Source: as above, for sparse tensors."""
    return torch.empty(a.shape, dtype=dtype or a.dtype, device="meta")


def write_nothing(*_: object, **__: object) -> None:
    """Return nothing, as an operator does that writes its arguments.

    Source:
        torch 2.13 has no meta kernel for these two, but for their functional variants.
    """


CORRECTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten._grouped_mm.default": grouped_mm,
        "aten.geqrf.default": geqrf,
        "aten._fused_sgd_.default": write_nothing,
        "aten._fused_adagrad_.default": write_nothing,
        "aten._to_sparse.default": to_sparse,
        "aten._to_sparse.sparse_dim": to_sparse_dim,
        "aten._to_dense.default": to_dense,
        "aten.histogram.bin_ct": histogram_by_count,
        "aten.histogram.bins_tensor": histogram_by_edges,
        "aten._histogramdd_bin_edges.default": histogramdd_edges,
        "aten._histogramdd_from_bin_tensors.default": histogramdd_by_edges,
        "aten._histogramdd_from_bin_cts.default": histogramdd_by_counts,
    }
)
"""By the operator's name."""


def keep_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return what a norm does, with mean and deviation as the CPU keeps them.

    Source:
        ``native_layer_norm`` in torch's ``_refs``, and ``native_batch_norm_helper`` in
        its decompositions ("very annoying inconsistency"): CUDA, and so meta, keeps
        float32; the CPU keeps the dtype of the parameters, and for a batch norm that
        does not train nothing.
    """
    is_training = next((v for v in arguments if isinstance(v, bool)), True)
    if not is_training:
        return drop_statistics(returned, a, *arguments)
    dtype = find_dtype(a, arguments)
    output, mean, deviation, *rest = returned
    if not a.is_meta or mean.dtype == dtype:
        return returned
    return (output, mean.to(dtype), deviation.to(dtype), *rest)


def drop_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return what a norm does without mean and deviation. Source: as above."""
    if not a.is_meta:
        return returned
    output, _, _, *rest = returned
    dtype = find_dtype(a, arguments)
    return (output, a.new_empty(0, dtype=dtype), a.new_empty(0, dtype=dtype), *rest)


def find_dtype(a: Tensor, arguments: Sequence[Any]) -> torch.dtype:
    """Return the dtype of the first parameter of a norm; the input's without any."""
    return next((v.dtype for v in arguments if isinstance(v, Tensor)), a.dtype)


def lay_out_image(returned: Tensor, a: Tensor, weight: Tensor, *_: object) -> Tensor:
    """Return what a convolution does, channels last if those of an argument are.

    Source:
        ``meta_conv`` in torch 2.13 ("Memory format is left as contiguous: meta tensors
        have no device info"); ``mkldnn_conv_use_channels_last`` and
        ``cudnn_conv_suggest_memory_format`` in ``aten/src/ATen/native/ConvUtils.h``.
    """
    last = torch.channels_last
    is_image = a.is_meta and a.ndim == len("NCHW")
    if not is_image or last not in map(suggest_memory_format, (a, weight)):
        return returned
    return torch.empty(
        returned.shape, dtype=returned.dtype, device="meta", memory_format=last
    )


CPU_ANSWERS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten.convolution.default": lay_out_image,
        "aten.native_layer_norm.default": keep_statistics,
        "aten.native_group_norm.default": keep_statistics,
        "aten.native_batch_norm.default": keep_statistics,
        "aten._native_batch_norm_legit.default": keep_statistics,
        "aten._native_batch_norm_legit.no_stats": keep_statistics,
        "aten._batch_norm_with_update.default": keep_statistics,
        "aten._batch_norm_no_update.default": drop_statistics,
    }
)
ANSWERS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = MappingProxyType(
    {
        "cpu": CPU_ANSWERS,
        "cuda": MappingProxyType({"aten.convolution.default": lay_out_image}),
        "meta": MappingProxyType({}),
    }
)
"""By device and operator; each takes what its kernel returned, and the arguments."""
