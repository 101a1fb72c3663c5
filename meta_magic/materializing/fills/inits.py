"""Which filling each ``init=`` stands for; a new one is a class and a row here."""

import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from torch import Tensor

from meta_magic.materializing.checkpoint_reader import open_checkpoint
from meta_magic.materializing.fills.checkpoint_fill import CheckpointFill
from meta_magic.materializing.fills.empty_fill import EmptyFill
from meta_magic.materializing.fills.joined_fill import JoinedFill
from meta_magic.materializing.fills.protocol import STATES, Fill, MakesFill, Task
from meta_magic.materializing.fills.replay_fill import ReplayFill
from meta_magic.materializing.fills.reset_fill import ResetFill

__all__ = ["FILL_BY_INIT", "INITS", "Init", "choose_fill", "list_inits"]

Function = TypeVar("Function", bound=Callable[..., object])

Init: TypeAlias = str | Path | Mapping[str, Tensor]

FILL_BY_INIT: Final[Mapping[str, MakesFill]] = {
    "replay": ReplayFill,
    "reset": ResetFill,
    "empty": EmptyFill,
}

INITS: Final = tuple(FILL_BY_INIT)


def choose_fill(init: Init, task: Task, own: Collection[int]) -> Fill:
    """Return what fills the tensors of a task.

    Args:
        init: A name of the table; what is none is a checkpoint.
        task: What is to be filled.
        own: The ``id`` of the tensors that ``init`` is about. The others are replayed:
            as they are now with a replay, else as they were when they were made.

    Raises:
        MaterializeError: It cannot be filled so.
    """
    make = FILL_BY_INIT.get(init) if isinstance(init, str) else None
    if make is ReplayFill:
        return make(task)
    rest = [t for t in task.targets if all(id(one) not in own for one in t.tensors)]
    asked = replace(task, targets=[t for t in task.targets if t not in rest])
    if make is not None:
        fill = make(asked)
    else:
        entries = open_checkpoint(init, task.device, FILL_BY_INIT)
        fill = CheckpointFill(asked, entries)
    if not rest:
        return fill
    return JoinedFill(fill, ReplayFill(replace(task, state=STATES[1]), rest=rest))


EXAMPLE: Final = """

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> print(materialize(layer))
        Linear on cpu: 2 tensors, 64 bytes, in ... s
          replay: 2 (weight, bias)"""


def list_inits(function: Function) -> Function:
    """Put what each ``init=`` gives into a docstring, where that says INITS.

    And an example at its end: with it the function would be too long.
    """
    named = [f'* ``"{name}"``: {fill.gives};' for name, fill in FILL_BY_INIT.items()]
    named.append(f"* a path or a state dict: {CheckpointFill.gives}.")
    item = textwrap.TextWrapper(width=88, subsequent_indent=" " * 14)
    item.initial_indent = " " * 12
    lines = "\n".join(item.fill(line) for line in named).strip()
    text = (function.__doc__ or "").replace("INITS", lines)
    function.__doc__ = text.rstrip() + EXAMPLE
    return function
