"""The operator by which experts are computed at once.

Without it nobody knows its FLOPs: a mixture of experts is without those of its experts.
"""

from typing import Final

import torch

__all__ = ["grouped_product"]

grouped_product: Final = torch.ops.aten._grouped_mm
