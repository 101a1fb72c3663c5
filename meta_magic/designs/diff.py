"""``mm.diff``: two recordings, or a module and a checkpoint, compared."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, overload

from torch import nn

from meta_magic.designs.checkpoint_names import (
    Checkpoint,
    CheckpointDifference,
    diff_checkpoint,
)
from meta_magic.designs.design import DEVICE, read_design
from meta_magic.designs.differences import Difference, compare
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.trace import Trace


@overload
def diff(before: Trace, after: Trace, *, device: str = DEVICE) -> Difference: ...
@overload
def diff(
    before: nn.Module, after: Checkpoint, *, device: str = DEVICE
) -> CheckpointDifference: ...
def diff(before: Any, after: Any, *, device: str = DEVICE) -> Any:
    """Compare two recordings; or the names of a checkpoint with those of a module.

    Modules are matched by name, class and content: a renamed module, an inserted layer
    and a changed width are distinguished.

    Args:
        before: A recording; or a module, on meta or real.
        after: Another recording; or a checkpoint, as of ``materialize(init=...)``.
        device: Of the estimated time, by its name in ``devices.toml``.

    Raises:
        TypeError: These cannot be compared.
        UnknownDeviceError: There is no such device.
        MaterializeError: The checkpoint cannot be read.

    Example:
        >>> with record() as small:
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        >>> with record() as large:
        ...     model = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        >>> print(diff(small, large).changes[0])
        ~ model.0: Linear  out_features 8 -> 16
    """
    if isinstance(before, nn.Module) and isinstance(after, (str, os.PathLike, Mapping)):
        return diff_checkpoint(before, after)
    if not (isinstance(before, Trace) and isinstance(after, Trace)):
        given = f"a {type(before).__name__} and a {type(after).__name__}"
        raise TypeError(
            f"diff() takes two traces, or a module and a checkpoint: {given}"
        )
    designs = [at_any_depth(read_design)(one, device=device) for one in (before, after)]
    return replace(compare(*designs), after=after)
