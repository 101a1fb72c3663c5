"""How a random operator draws its numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meta_magic.recording.tensors import Seen

__all__ = ["Drawing"]


class Drawing:
    """How a random operator draws.

    Attributes:
        generator: What it was told to draw from; None for torch's default.
        is_real: Whether it makes real numbers, and not just meta tensors.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[tuple[Tensor, Seen]],
    ) -> None:
        values = (*args, *kwargs.values())
        found = (v for v in values if isinstance(v, torch.Generator))
        self.generator: torch.Generator | None = next(found, None)
        if inputs:
            self.is_real = not any(seen[2].is_meta for _, seen in inputs)
        else:
            device = kwargs.get("device")
            self.is_real = device is None or device.type != "meta"
