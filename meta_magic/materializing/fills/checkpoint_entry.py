"""One tensor of a checkpoint, of which a part may be read alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Part: TypeAlias = tuple[slice, ...]
"""A part of a tensor: for each dimension where it begins and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One tensor of a checkpoint.

    Attributes:
        source: The file or mapping, as messages name it.
        shape: Size of each dimension.
        load: Returns the tensor, or a part of it, each time another object; from a file
            on the CPU all of it is mapped, not read.
    """

    source: str
    shape: tuple[int, ...]
    load: Callable[[Part | None], Tensor]
