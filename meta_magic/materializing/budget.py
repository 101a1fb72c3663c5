"""Compare the bytes that are needed with those that are free."""

from collections.abc import Sequence
from typing import Final

import torch

from meta_magic.errors import MaterializeError
from meta_magic.materializing.targets import Target
from meta_magic.replaying.devices import free_nbytes
from meta_magic.trace.units import format_bytes

__all__ = ["check_budget"]

N_LARGEST: Final = 5


def check_budget(
    what: str, device: torch.device, needed: int, targets: Sequence[Target]
) -> None:
    """Refuse what does not fit.

    Args:
        what: What is to be made, in words.
        device: Where.
        needed: The most bytes that will be held at any moment.
        targets: What is to be made.

    Raises:
        MaterializeError: Fewer bytes are free.
    """
    free = free_nbytes(device)
    if needed <= free:
        return
    largest = sorted(targets, key=lambda target: -target.nbytes)[:N_LARGEST]
    listed = ", ".join(f"{t.name} {format_bytes(t.nbytes)}" for t in largest)
    raise MaterializeError(
        f"cannot put {what} on {device}: it takes {format_bytes(needed)} at its peak "
        f"and {format_bytes(free)} is free. The largest tensors: {listed}. Materialize "
        "a submodule, cast with dtype=, or choose another device"
    )
