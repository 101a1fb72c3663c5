"""Run attention as a device does: by the fused kernel that torch would choose there.

On meta ``scaled_dot_product_attention`` is always computed by many operators ("math"),
with a matrix of all pairs of tokens. Here it becomes the operator of the device,
forward and backward; nothing is allocated, and no GPU is needed. ``choose`` picks the
kernel, ``DeviceAttention`` runs it.

Source: ``aten/src/ATen/native/transformers/sdp_utils_cpp.cpp`` (CPU) and
``cuda/sdp_utils.cpp`` (CUDA) of torch 2.13; on CUDA, for compute capability 8.0 or 9.0.
"""

import threading
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from meta_magic.recording.as_device.autocast import ATTENTION, DeviceAutocast
from meta_magic.recording.as_device.composites import DeviceComposites
from meta_magic.recording.as_device.cpu_kernels import adds_batch_to_attention
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    DispatchKey,
    attention_priorities,
    cudnn_attention,
    efficient_attention,
    flash_attention,
    flash_attention_on_cpu,
    math_attention,
    run_kernel,
)
from meta_magic.torch_private.modes import DisableAutocast
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.program_facts import KernelChoice

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


class Attention(NamedTuple):
    """The arguments of one ``scaled_dot_product_attention``.

    Shape: query ``(batch, heads, n, d)``, key ``(batch, heads, m, d)``, value ``(batch,
    heads, m, e)``; with ``enable_gqa`` fewer heads in key and value.
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

    def with_batch(self) -> "Attention":
        """Return the call with a batch of one.

        Source: ``scaled_dot_product_attention`` of torch 2.15, of the CPU and of meta.
        """
        q, k, v = (t.unsqueeze(0) for t in self.tensors)
        mask = self.mask
        while mask is not None and mask.ndim < BATCHED:
            mask = mask.unsqueeze(0)
        return self._replace(query=q, key=k, value=v, mask=mask)

    def has_equal_sizes(self) -> bool:
        """Whether the heads of query, key and value have the same size."""
        return len({tensor.shape[-1] for tensor in self.tensors}) == 1

    def has_fitting_heads(self) -> bool:
        """Whether all have the same heads, or those of the query can be grouped."""
        q, k, v = (t.shape[1] for t in self.tensors)
        if not self.enable_gqa:
            return q == k == v
        return k == v and k > 0 and q % k == 0

    def has_fitting_mask(self) -> bool:
        """Whether the mask, if any, broadcasts as fused kernels need it."""
        if self.mask is None:
            return True
        q, k, _ = self.tensors
        whole = (*q.shape[:2], q.shape[-2], k.shape[-2])
        sizes = self.mask.shape
        wanted = whole[-2:] if len(sizes) < BATCHED else whole
        fits = all(n in (1, m) for n, m in zip(sizes, wanted, strict=False))
        return len(sizes) in (2, BATCHED) and fits


def check_arguments(call: Attention, device: FusingDevice) -> None:
    """Refuse arguments that torch refuses on every device, or on the CPU."""
    q, k, v = call.tensors
    mask = call.mask
    fits = q.dtype == k.dtype == v.dtype and min(t.ndim for t in call.tensors) > 1
    if mask is not None:
        fits = fits and mask.dtype in {torch.bool, q.dtype, torch.float32}
        fits = fits and (mask.ndim > 1 or device == "cuda")
    if fits:
        return
    with RealTorch():  # the CPU checks these before it computes
        ones = one_like(q), one_like(k), one_like(v)
        scaled_dot_product_attention(*ones, None if mask is None else one_like(mask))


def one_like(tensor: Tensor) -> Tensor:
    """Return a tensor of one number on the CPU, with the dimensions of a tensor."""
    return torch.ones((1,) * tensor.ndim, dtype=tensor.dtype, device="cpu")


def choose(call: Attention, device: FusingDevice) -> tuple[Kernel, str]:
    """Return the kernel that a device would run, and why it is "math"; else ""."""
    reason = find_obstacle(call, device)
    kernels = choose_on_cpu if device == "cpu" else choose_on_cuda
    kernel, reason = (None, reason) if reason else kernels(call)
    if kernel is not None:
        return kernel, ""
    if not torch.backends.cuda.math_sdp_enabled():
        raise RuntimeError(f"No available kernel. Aborting execution. ({reason})")
    return "math", reason


def find_obstacle(call: Attention, device: FusingDevice) -> str:
    """Return why no fused kernel of a device accepts a call; "" if one may."""
    q, k, v = call.tensors
    if not all(t.ndim == BATCHED for t in call.tensors):
        return f"query, key and value have {q.ndim} dimensions, not {BATCHED}"
    is_on_cpu = device == "cpu"
    obstacles = {
        f"{q.dtype} has no fused kernel": q.dtype not in DTYPES[device],
        "query, key and value differ in dtype": not q.dtype == k.dtype == v.dtype,
        "their batches differ": not q.shape[0] == k.shape[0] == v.shape[0],
        "a sequence is empty": not all(t.shape[-2] for t in call.tensors),
        "elements of a head are apart": any(t.stride(-1) != 1 for t in call.tensors),
        "they differ in heads": not call.has_fitting_heads(),
        "the mask requires grad": call.mask is not None and call.mask.requires_grad,
        "their heads differ in size": is_on_cpu and not call.has_equal_sizes(),
        "the mask is of an unusual shape": is_on_cpu and not call.has_fitting_mask(),
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
    """Return the first fused kernel of CUDA that accepts a call, or why none does."""
    flags = torch.backends.cuda
    takes: dict[int, tuple[Kernel, bool]] = {
        SDPBackend.FLASH_ATTENTION.value: (
            "flash",
            flags.flash_sdp_enabled() and has_flash(call),
        ),
        SDPBackend.EFFICIENT_ATTENTION.value: (
            "efficient",
            flags.mem_efficient_sdp_enabled() and has_efficient(call),
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
    """Whether CUDA's flash kernel accepts a call."""
    q, k, _ = call.tensors
    is_square = q.shape[-2] == k.shape[-2]
    return (
        call.mask is None
        and call.has_equal_sizes()
        and q.dtype in HALVES
        and call.head_dim <= MAX_HEAD_DIM["flash"]
        and (is_square or not call.is_causal)
    )


def has_efficient(call: Attention) -> bool:
    """Whether CUDA's memory-efficient kernel accepts a call, without grouped heads.

    Source: ``can_use_mem_efficient_attention`` in ``cuda/sdp_utils.cpp``; as on an H100
    with torch 2.11. Sources after 2.13 take groups.
    """
    q, k, v = call.tensors
    alignment = ALIGNMENT if q.dtype in HALVES else ALIGNMENT // 2
    is_aligned = not any(t.shape[-1] % alignment for t in (q, v))
    return is_aligned and q.shape[-1] == k.shape[-1] and q.shape[1] == k.shape[1]


def has_cudnn(call: Attention) -> bool:
    """Whether CUDA's kernel of cuDNN accepts a call."""
    q, k, v = call.tensors
    sizes = q.shape[-1], v.shape[-1]
    return (
        q.dtype in HALVES
        and q.shape[-1] == k.shape[-1]
        and max(sizes) <= MAX_HEAD_DIM["cudnn"]
        and not any(size % ALIGNMENT for size in sizes)
        and call.has_fitting_mask()
    )


aten = torch.ops.aten
OPERATOR: Final = aten.scaled_dot_product_attention.default
COMPOSITE: Final = DispatchKey.CompositeImplicitAutograd


def run_math(call: Attention) -> Any:
    """Return the output of many operators."""
    given = (*call.tensors, as_float(call), call.dropout_p, call.is_causal)
    return math_attention(*given, scale=call.scale, enable_gqa=call.enable_gqa)[0]


def run_empty(call: Attention) -> Any:
    """Return the output of tensors without elements, the same on every device."""
    options = {"scale": call.scale, "enable_gqa": call.enable_gqa}
    given = (*call.tensors, call.mask, call.dropout_p, call.is_causal)
    return run_kernel(OPERATOR, COMPOSITE, given, options)


def run_flash_on_cpu(call: Attention) -> Any:
    """Return the output of the CPU's flash kernel."""
    given, mask = (*call.tensors, 0.0, call.is_causal), as_float(call)
    return flash_attention_on_cpu(*given, attn_mask=mask, scale=call.scale)[0]


def run_flash(call: Attention) -> Tensor:
    """Return the output of CUDA's flash kernel; it needs heads of a multiple of 8."""
    width = call.head_dim
    missing = -width % ALIGNMENT
    tensors = call.tensors
    if missing:
        q, k, v = (aten.pad(t, [0, missing]) for t in tensors)
        tensors = q, k, v
    scale = width**-0.5 if call.scale is None else call.scale
    given = (*tensors, call.dropout_p, call.is_causal)
    output: Tensor = flash_attention(*given, return_debug_mask=False, scale=scale)[0]
    return output[..., :width] if missing else output


def run_efficient(call: Attention) -> Any:
    """Return the output of CUDA's memory-efficient kernel."""
    q, k, v = call.tensors
    mask = as_float(call)
    if mask is not None:
        mask = align(mask).expand(*q.shape[:2], q.shape[-2], k.shape[-2])
    needs, dropout_p = needs_gradient(call), call.dropout_p
    given = (q, k, v, mask, needs, dropout_p, call.is_causal)
    return efficient_attention(*given, scale=call.scale)[0]


def run_cudnn(call: Attention) -> Any:
    """Return the output of CUDA's kernel of cuDNN."""
    given = (*call.tensors, as_float(call), needs_gradient(call), call.dropout_p)
    has_debug_mask = False
    options = call.is_causal, has_debug_mask
    return cudnn_attention(*given, *options, scale=call.scale)[0]


def needs_gradient(call: Attention) -> bool:
    """Whether the kernel must keep tensors for its backward."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)


def as_float(call: Attention) -> Tensor | None:
    """Return the mask as numbers to add: 0 where it is true, else -inf."""
    if call.mask is None or call.mask.dtype != torch.bool:
        return call.mask
    zero, least = (
        torch.scalar_tensor(n, dtype=call.query.dtype, device="meta")
        for n in (0.0, -torch.inf)
    )
    return torch.where(call.mask, zero, least)


def align(mask: Tensor) -> Tensor:
    """Return a mask whose rows begin at multiples of 8 elements.

    Source: ``preprocess_mask`` in ``transformers/attention.cpp``; as on an H100 with
    torch 2.11.
    """
    *strides, last = mask.stride()
    if last == 1 and not any(stride % ALIGNMENT for stride in strides):
        return mask
    width = mask.shape[-1]
    padded: Tensor = aten.pad(mask, [0, ALIGNMENT - width % ALIGNMENT])
    return padded[..., :width]


RUNS: Final = {
    ("cpu", "flash"): run_flash_on_cpu,
    ("cuda", "flash"): run_flash,
    ("cuda", "efficient"): run_efficient,
    ("cuda", "cudnn"): run_cudnn,
}


class DeviceAttention(RecordingReplacements):
    """Makes attention on meta run as on a device, within the block.

    The kernel is below function modes, so it also runs while activations are computed
    again by checkpointing.
    """

    def __init__(
        self, write: Writers, autocast: DeviceAutocast, composites: DeviceComposites
    ) -> None:
        super().__init__(write)
        self.device = write.plan.kernels
        self._thread = threading.get_ident()
        self.autocast = autocast
        self._composites = composites

    def __enter__(self) -> None:
        if self.device == "meta":
            return
        self._thread = threading.get_ident()
        self.override_kernels({ATTENTION: self.attend})

    def attend(
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
    ) -> Any:
        """Run attention as the device would, and note the chosen kernel."""
        kernels = self._plan.kernels_of((query, key, value))
        device: FusingDevice = "cuda" if kernels == "cuda" else "cpu"
        if torch.is_autocast_enabled(device):
            (query, key, value, attn_mask), _ = self.autocast.cast(
                device, ATTENTION, (query, key, value, attn_mask), {}
            )
        options = dropout_p, is_causal, scale, enable_gqa
        call = Attention(query, key, value, attn_mask, *options)
        check_arguments(call, device)
        if not all(tensor.numel() for tensor in call.tensors):
            return run_empty(call)
        if threading.get_ident() != self._thread:  # another thread is not recorded
            return run_math(call)
        has_batch = any(t.ndim != BATCHED - 1 for t in call.tensors)
        if not has_batch and adds_batch_to_attention():
            return self._run(call.with_batch(), device).squeeze(0)
        return self._run(call, device)

    def _run(self, call: Attention, device: FusingDevice) -> Any:
        clock = self._write.clock
        first = clock.now
        kernel, reason = choose(call, device)
        with DisableAutocast():
            output = RUNS.get((device, kernel), run_math)(call)
        text = f"{kernel} attention, as on {device}" + (reason and f": {reason}")
        choice = KernelChoice(first, clock.now, text)
        self._write.diagnostics.kernels.append(choice)
        return output

    def decompose(self, operator: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run a composite operator as its parts."""
        name = str(operator).removeprefix("aten.").removesuffix(".default")
        args, kwargs = self.autocast.cast_where_on(name, args, kwargs)
        was_on, self.autocast.is_on = self.autocast.is_on, False
        try:
            if name == ATTENTION and self.device != "meta" and args[0].is_meta:
                return self.attend(*args, **kwargs)
            return self._composites.run(operator, args, kwargs)
        finally:
            self.autocast.is_on = was_on
