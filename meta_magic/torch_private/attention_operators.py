"""The operators that ``scaled_dot_product_attention`` is made of, by device.

Without one of them, attention that a device would run by it cannot be recorded as such,
nor replayed: it is math then.
"""

from typing import Final

import torch

# Without it the order in which CUDA's kernels of attention are tried is not known.
from torch._C import _get_sdp_priority_order as attention_priorities

__all__ = [
    "attention_priorities",
    "cudnn_attention",
    "efficient_attention",
    "flash_attention",
    "flash_attention_on_cpu",
    "math_attention",
]

math_attention: Final = torch.ops.aten._scaled_dot_product_attention_math
flash_attention_on_cpu: Final = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
)
flash_attention: Final = torch.ops.aten._scaled_dot_product_flash_attention
efficient_attention: Final = torch.ops.aten._scaled_dot_product_efficient_attention
cudnn_attention: Final = torch.ops.aten._scaled_dot_product_cudnn_attention
