"""Which kernel a device chooses for ``scaled_dot_product_attention``, and why.

Source: ``aten/src/ATen/native/transformers/sdp_utils_cpp.cpp`` (CPU) and
``cuda/sdp_utils.cpp`` (CUDA) of torch 2.13; on CUDA, for compute capability 8.0 or 9.0.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from meta_magic.torch_private.dispatcher import attention_priorities
from meta_magic.torch_private.snapshot import RealTorch

__all__ = ["Attention", "FusingDevice", "KernelPick", "check_arguments", "choose"]

FusingDevice: TypeAlias = Literal["cpu", "cuda"]
Kernel: TypeAlias = Literal["flash", "efficient", "cudnn", "math"]

HALVES: Final = frozenset({torch.float16, torch.bfloat16})
DTYPES: Final = {
    "cpu": HALVES | {torch.float32, torch.float64},
    "cuda": HALVES | {torch.float32},
}
BATCHED: Final = 4
MAX_HEAD_DIM: Final = {"flash": 256, "cudnn": 128}
ALIGNMENT: Final = 8


class KernelPick(NamedTuple):
    """The kernel that a device would run.

    Attributes:
        kernel: Its name.
        reason: Why it is the math of many operators; "" for a fused one.
    """

    kernel: Kernel
    reason: str = ""


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

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.query.shape[-1]

    def lacks_batch(self) -> bool:
        """Whether all have three dimensions."""
        return all(t.ndim == BATCHED - 1 for t in self.tensors)

    def with_batch(self) -> "Attention":
        """Return it as that of a batch of one.

        Source:
            ``scaled_dot_product_attention`` of torch 2.15, of the CPU and of meta.
        """
        q, k, v = (t.unsqueeze(0) for t in self.tensors)
        mask = self.mask
        while mask is not None and mask.ndim < BATCHED:
            mask = mask.unsqueeze(0)
        return self._replace(query=q, key=k, value=v, mask=mask)

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
        return len(sizes) in (2, BATCHED) and fits


def check_arguments(call: Attention, device: FusingDevice) -> None:
    """Refuse what torch refuses on every device, and what the CPU alone does.

    Raises:
        RuntimeError: The dtypes or dimensions do not fit, in torch's words.
    """
    q, k, v = call.tensors
    mask = call.mask
    fits = q.dtype == k.dtype == v.dtype and min(t.ndim for t in call.tensors) > 1
    if mask is not None:
        fits = fits and mask.dtype in {torch.bool, q.dtype, torch.float32}
        fits = fits and (mask.ndim > 1 or device == "cuda")
    if fits:
        return
    with RealTorch():  # the CPU looks at these before it computes
        ones = one_like(q), one_like(k), one_like(v)
        scaled_dot_product_attention(*ones, None if mask is None else one_like(mask))


def one_like(tensor: Tensor) -> Tensor:
    """Return one number on the CPU, of as many dimensions as a tensor."""
    return torch.ones((1,) * tensor.ndim, dtype=tensor.dtype, device="cpu")


def choose(call: Attention, device: FusingDevice) -> KernelPick:
    """Return what a device would run.

    Raises:
        RuntimeError: All that it could run is switched off, in torch's words.
    """
    reason = find_obstacle(call, device)
    kernels = choose_on_cpu if device == "cpu" else choose_on_cuda
    kernel, reason = (None, reason) if reason else kernels(call)
    if kernel is not None:
        return KernelPick(kernel)
    if not torch.backends.cuda.math_sdp_enabled():
        raise RuntimeError(f"No available kernel. Aborting execution. ({reason})")
    return KernelPick("math", reason)


def find_obstacle(call: Attention, device: FusingDevice) -> str:
    """Return why no fused kernel of a device takes a call; "" if one may."""
    q, k, v = call.tensors
    if not all(t.ndim == BATCHED for t in call.tensors):
        return f"query, key and value have {q.ndim} dimensions, not {BATCHED}"
    obstacles = {
        f"{q.dtype} has no fused kernel": q.dtype not in DTYPES[device],
        "query, key and value differ in dtype": not q.dtype == k.dtype == v.dtype,
        "their batches differ": not q.shape[0] == k.shape[0] == v.shape[0],
        "their heads differ in size": not q.shape[-1] == k.shape[-1] == v.shape[-1],
        "a sequence is empty": not all(t.shape[-2] for t in call.tensors),
        "elements of a head are apart": any(t.stride(-1) != 1 for t in call.tensors),
        "they differ in heads": not call.has_fitting_heads(),
        "the mask is of an unusual shape": not call.has_fitting_mask(),
        "the mask requires grad": call.mask is not None and call.mask.requires_grad,
    }
    return next((text for text, is_so in obstacles.items() if is_so), "")


def choose_on_cpu(call: Attention) -> tuple[Kernel | None, str]:
    """Return the fused kernel of the CPU, or why there is none."""
    if not torch.backends.cuda.flash_sdp_enabled():  # the CPU asks the same flag
        return None, "flash attention is switched off"
    if call.dropout_p:
        return None, f"dropout_p is {call.dropout_p:g}"
    return "flash", ""


def choose_on_cuda(call: Attention) -> tuple[Kernel | None, str]:
    """Return the fused kernel of CUDA that comes first, or why there is none."""
    flags = torch.backends.cuda
    takes: dict[int, tuple[Kernel, bool]] = {
        SDPBackend.FLASH_ATTENTION.value: (
            "flash",
            flags.flash_sdp_enabled() and has_flash(call),
        ),
        SDPBackend.EFFICIENT_ATTENTION.value: (
            "efficient",
            flags.mem_efficient_sdp_enabled(),
        ),
        SDPBackend.CUDNN_ATTENTION.value: (
            "cudnn",
            flags.cudnn_sdp_enabled() and has_cudnn(call),
        ),
    }
    for backend in attention_priorities():
        kernel, is_there = takes.get(backend, (None, False))
        if is_there:
            return kernel, ""
    return None, "its fused kernels are switched off, or refuse it"


def has_flash(call: Attention) -> bool:
    """Whether CUDA's flash kernel takes it."""
    q, k, _ = call.tensors
    is_square = q.shape[-2] == k.shape[-2]
    return (
        call.mask is None
        and q.dtype in HALVES
        and call.head_dim <= MAX_HEAD_DIM["flash"]
        and (is_square or not call.is_causal)
    )


def has_cudnn(call: Attention) -> bool:
    """Whether CUDA's kernel of cuDNN takes it."""
    return (
        call.query.dtype in HALVES
        and call.head_dim <= MAX_HEAD_DIM["cudnn"]
        and call.head_dim % ALIGNMENT == 0
    )
