"""Attention as a device runs it: one fused kernel where torch would choose one there.

On meta ``scaled_dot_product_attention`` is always the math of 27 operators, with a
matrix of all pairs of tokens. Here it becomes the operator that the device would get,
by torch's own rules, forward and backward; nothing is allocated, and no CUDA is needed.

Source: ``aten/src/ATen/native/transformers/sdp_utils_cpp.cpp`` (CPU) and
``cuda/sdp_utils.cpp`` (CUDA) of torch 2.13; on CUDA, for compute capability 8.0 or 9.0.
"""

from types import TracebackType
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["DEVICES", "AttentionOf", "DeviceName"]

DeviceName: TypeAlias = Literal["cpu", "cuda"]
DEVICES: Final[tuple[DeviceName, ...]] = ("cpu", "cuda")

HALVES: Final = frozenset({torch.float16, torch.bfloat16})
DTYPES: Final = {
    "cpu": HALVES | {torch.float32, torch.float64},
    "cuda": HALVES | {torch.float32},
}
BATCHED: Final = 4
MAX_HEAD_DIM: Final = 256
"""Of the flash kernel on CUDA."""

FLASH_ALIGNMENT: Final = 8
MASK_ALIGNMENT: Final = 16

aten = torch.ops.aten


class Attention(NamedTuple):
    """The arguments of one ``scaled_dot_product_attention``.

    Shape:
        query ``(batch, heads, n, d)``, key ``(batch, heads, m, d)``, value
        ``(batch, heads, m, e)``; with ``enable_gqa`` key and value have fewer heads.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def is_fusible(self, device: DeviceName) -> bool:
        """Whether any fused kernel of a device takes it."""
        q, k, v = self.tensors
        return (
            all(is_usual(tensor) for tensor in self.tensors)
            and q.dtype in DTYPES[device]
            and q.dtype == k.dtype == v.dtype
            and q.shape[0] == k.shape[0] == v.shape[0]
            and q.shape[-1] == k.shape[-1] == v.shape[-1]
            and self.has_fitting_heads()
            and self.has_fitting_mask()
        )

    def has_fitting_heads(self) -> bool:
        """Whether all have as many heads, or those of the query can be grouped."""
        q, k, v = (t.shape[1] for t in self.tensors)
        if not self.enable_gqa:
            return q == k == v
        return k == v and k > 0 and q % k == 0

    def has_fitting_mask(self) -> bool:
        """Whether the mask, if any, broadcasts as fused kernels know it."""
        if self.mask is None:
            return True
        q, k, _ = self.tensors
        whole = (*q.shape[:2], q.shape[-2], k.shape[-2])
        sizes = self.mask.shape
        wanted = whole[-2:] if len(sizes) < BATCHED else whole
        fits = all(n in (1, m) for n, m in zip(sizes, wanted, strict=False))
        return len(sizes) in (2, BATCHED) and fits and not self.mask.requires_grad

    def as_float(self) -> Tensor | None:
        """Return the mask as numbers to add: 0 where it is true, else -inf."""
        if self.mask is None or self.mask.dtype != torch.bool:
            return self.mask
        zero, least = (
            torch.scalar_tensor(n, dtype=self.query.dtype, device="meta")
            for n in (0.0, -torch.inf)
        )
        return torch.where(self.mask, zero, least)


def is_usual(tensor: Tensor) -> bool:
    """Whether fused kernels take a tensor of its dimensions and strides."""
    return tensor.ndim == BATCHED and tensor.shape[-2] > 0 and tensor.stride(-1) == 1


def run_math(call: Attention) -> Tensor:
    """Return the output of the math of many operators."""
    q, k, v, mask, dropout_p, is_causal, scale, enable_gqa = call
    output: Tensor = aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return output


def run_on_cpu(call: Attention) -> Tensor:
    """Return the output of the kernel that the CPU would choose."""
    is_enabled = torch.backends.cuda.flash_sdp_enabled()  # the CPU asks the same flag
    if call.dropout_p or not is_enabled or not call.is_fusible("cpu"):
        return run_math(call)
    output: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        *call.tensors, 0.0, call.is_causal, attn_mask=call.as_float(), scale=call.scale
    )[0]
    return output


def run_on_cuda(call: Attention) -> Tensor:
    """Return the output of the kernel that CUDA would choose."""
    flags = torch.backends.cuda
    if not call.is_fusible("cuda"):
        return run_math(call)
    if flags.flash_sdp_enabled() and has_flash(call):
        return run_flash(call)
    if flags.mem_efficient_sdp_enabled():
        return run_efficient(call)
    return run_math(call)


def has_flash(call: Attention) -> bool:
    """Whether CUDA's flash kernel takes it."""
    q, k, _ = call.tensors
    is_square = q.shape[-2] == k.shape[-2]
    return (
        call.mask is None
        and q.dtype in HALVES
        and q.shape[-1] <= MAX_HEAD_DIM
        and (is_square or not call.is_causal)
    )


def run_flash(call: Attention) -> Tensor:
    """Return the output of CUDA's flash kernel; it wants heads of a multiple of 8."""
    width = call.query.shape[-1]
    missing = -width % FLASH_ALIGNMENT
    tensors = call.tensors
    if missing:
        tensors = tuple(aten.pad(t, [0, missing]) for t in tensors)  # type: ignore[assignment]
    scale = width**-0.5 if call.scale is None else call.scale
    output: Tensor = aten._scaled_dot_product_flash_attention(
        *tensors, call.dropout_p, call.is_causal, return_debug_mask=False, scale=scale
    )[0]
    return output[..., :width] if missing else output


def run_efficient(call: Attention) -> Tensor:
    """Return the output of CUDA's memory-efficient kernel."""
    q, k, v = call.tensors
    if call.enable_gqa and q.shape[1] != k.shape[1]:
        n = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    mask = call.as_float()
    if mask is not None:
        mask = align(mask).expand(*q.shape[:2], q.shape[-2], k.shape[-2])
    has_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    output: Tensor = aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, has_gradient, call.dropout_p, call.is_causal, scale=call.scale
    )[0]
    return output


def align(mask: Tensor) -> Tensor:
    """Return a mask whose rows begin at multiples of 16 elements."""
    width = mask.shape[-1]
    missing = -width % MASK_ALIGNMENT
    return aten.pad(mask, [0, missing])[..., :width] if missing else mask


RUNS: Final = {"cpu": run_on_cpu, "cuda": run_on_cuda}


class AttentionOf:
    """Have attention on meta be that of a device, within the block.

    Below function modes, so that it holds while activations are computed again, too.

    Args:
        device: ``cpu`` or ``cuda``; None leaves it to torch.
    """

    def __init__(self, device: DeviceName | None) -> None:
        self._is_active = device is not None
        self._choose = RUNS[device or "cpu"]
        self._library: torch.library.Library | None = None

    def __enter__(self) -> None:
        if not self._is_active:
            return
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("scaled_dot_product_attention", self._answer, "AutogradMeta")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _answer(  # noqa: PLR0913, PLR0917  the operator's own
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        call = Attention(
            *(query, key, value, attn_mask),
            *(dropout_p, is_causal, scale, enable_gqa),
        )
        return self._choose(call)
