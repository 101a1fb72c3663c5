"""The operators that ``scaled_dot_product_attention`` is made of, by device.

Without one of them, attention that a device would run by it cannot be recorded as such,
nor replayed: it is math then. Without the two of fast paths nobody knows their FLOPs.
"""

from typing import Final

import torch

# Without it the order in which CUDA's kernels of attention are tried is not known.
from torch._C import _get_sdp_priority_order as attention_priorities

__all__ = [
    "ON_CPU",
    "attention_priorities",
    "cudnn_attention",
    "efficient_attention",
    "fast_attention",
    "fast_encoder_layer",
    "flash_attention",
    "flash_attention_on_cpu",
    "math_attention",
]

ON_CPU: Final = "_for_cpu"
"""In the names of the CPU's kernels, which compute what CUDA's do."""

math_attention: Final = torch.ops.aten._scaled_dot_product_attention_math
flash_attention_on_cpu: Final = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
)
flash_attention: Final = torch.ops.aten._scaled_dot_product_flash_attention
efficient_attention: Final = torch.ops.aten._scaled_dot_product_efficient_attention
cudnn_attention: Final = torch.ops.aten._scaled_dot_product_cudnn_attention
fast_attention: Final = torch.ops.aten._native_multi_head_attention
fast_encoder_layer: Final = torch.ops.aten._transformer_encoder_layer_fwd
