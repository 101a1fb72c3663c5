"""How one call of a random operator draws."""

import torch

from meta_magic.recording.signatures.arguments import Given

__all__ = ["Drawing"]


class Drawing:
    """How a random operator draws.

    Attributes:
        generator: What it was told to draw from; None for torch's default.
        is_real: Whether it makes real numbers, and not just meta tensors.
    """

    def __init__(self, given: Given) -> None:
        values = (*given.args, *given.kwargs.values())
        found = (v for v in values if isinstance(v, torch.Generator))
        self.generator: torch.Generator | None = next(found, None)
        device = given.kwargs.get("device")
        if device is None:
            self.is_real = not any(seen[2].is_meta for _, seen in given.inputs)
        else:
            self.is_real = device.type != "meta"
