"""The positions of sparse tensors on meta, where an operator on the CPU gave them.

They are known by the storage of the positions on meta, for as long as that lives: a
later cell finds them, too.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.living_tensors import read_version
from meta_magic.torch_private.tensor_internals import plan_part

__all__ = ["find_positions", "plan_positions"]

known: WeakKeyDictionary[UntypedStorage, tuple[int, Tensor]] = WeakKeyDictionary()
"""How often they had been written, and what they were."""


def plan_positions(real: Tensor) -> Tensor:
    """Return positions on meta, of which it is known what they hold."""
    with torch.inference_mode(mode=False):  # where torch counts writes
        planned = plan_part(real)
    known[planned.untyped_storage()] = read_version(planned), real
    return planned


def find_positions(planned: Tensor) -> Tensor | None:
    """Return what positions on meta hold; None if that is not known, or was written."""
    version, real = known.get(planned.untyped_storage(), (-1, None))
    return real if version == read_version(planned) else None
