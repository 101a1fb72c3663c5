"""Which filling each ``init=`` stands for; a new one is a class and a row here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from torch import Tensor

from meta_magic.materializing.checkpoint_reader import open_checkpoint
from meta_magic.materializing.fills.checkpoint import CheckpointFill
from meta_magic.materializing.fills.empty import EmptyFill
from meta_magic.materializing.fills.protocol import Fill, Task
from meta_magic.materializing.fills.replay import ReplayFill
from meta_magic.materializing.fills.reset import ResetFill

__all__ = ["FILL_BY_INIT", "INITS", "Init", "choose_fill"]

Init: TypeAlias = str | Path | Mapping[str, Tensor]

FILL_BY_INIT: Final[Mapping[str, Callable[[Task], Fill]]] = {
    "replay": ReplayFill,
    "reset": ResetFill,
    "empty": EmptyFill,
}

INITS: Final = tuple(FILL_BY_INIT)


def choose_fill(init: Init, task: Task) -> Fill:
    """Return what fills a module.

    Args:
        init: A name of the table; what is none is a checkpoint.
        task: What is to be filled.

    Raises:
        MaterializeError: It cannot be filled so.
    """
    make = FILL_BY_INIT.get(init) if isinstance(init, str) else None
    if make is not None:
        return make(task)
    return CheckpointFill(task, open_checkpoint(init, task.device, FILL_BY_INIT))
