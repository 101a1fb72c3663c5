"""Which fill each ``init=`` names; a new one is a class and a row here."""

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from torch import Tensor

from meta_magic.materializing.fills.checkpoint_fill import (
    CheckpointFill,
    open_checkpoint,
)
from meta_magic.materializing.fills.protocol import (
    STATES,
    EmptyFill,
    Fill,
    Put,
    Task,
)
from meta_magic.materializing.fills.replay_fill import ReplayFill
from meta_magic.materializing.fills.reset_fill import ResetFill
from meta_magic.materializing.report import Forecast
from meta_magic.materializing.targets import Target

Function = TypeVar("Function", bound=Callable[..., object])

Init: TypeAlias = str | Path | Mapping[str, Tensor]

FILL_BY_INIT: Final[Mapping[str, type[EmptyFill] | type[ReplayFill]]] = {
    "replay": ReplayFill,
    "reset": ResetFill,
    "empty": EmptyFill,
}

INITS: Final = tuple(FILL_BY_INIT)


def choose_fill(init: Init, task: Task, own: Collection[int]) -> Fill:
    """Return what fills the tensors of a task.

    ``own`` are the ``id`` of the tensors that ``init`` is about. The others are
    replayed: with ``init="replay"`` to their values after the cell, else to those when
    they were made.
    """
    make = FILL_BY_INIT.get(init) if isinstance(init, str) else None
    if make is ReplayFill:
        return make(task)
    rest = [t for t in task.targets if all(id(h.tensor) not in own for h in t.held)]
    asked = replace(task, targets=[t for t in task.targets if t not in rest])
    fill: Fill
    if make is not None:
        fill = make(asked)
    else:
        fill = CheckpointFill(asked, open_checkpoint(init, task.device, FILL_BY_INIT))
    if not rest:
        return fill
    return JoinedFill(fill, ReplayFill(replace(task, state=STATES[1]), rest=rest))


class JoinedFill:
    """Runs the fill that the user asked for, then a replay of the companions."""

    def __init__(self, first: Fill, second: Fill) -> None:
        self._fills = first, second
        self.targets = [*first.targets, *second.targets]
        self.n_operators = first.n_operators + second.n_operators
        self._of_second = {*second.targets}

    @property
    def n_work(self) -> int:
        """The work of both."""
        return sum(fill.n_work for fill in self._fills)

    def forecast(self) -> Forecast:
        """Return what will be replayed for both."""
        first, second = (fill.forecast() for fill in self._fills)
        return first.join(second)

    def peak_nbytes(self) -> int:
        """Return the most bytes that are held at any moment."""
        first, second = self._fills
        made = sum(target.nbytes for target in first.targets)
        return max(first.peak_nbytes(), made + second.peak_nbytes())

    def run(self, put: Put) -> Iterator[int]:
        """Fill all targets."""
        for fill in self._fills:
            yield from fill.run(put)

    def finish(self) -> Sequence[str]:
        """Finish both."""
        return [note for fill in self._fills for note in fill.finish()]

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Return the source of a tensor's content."""
        return self._fills[target in self._of_second].filled_by(target, tensor)


EXAMPLE: Final = """

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> print(materialize(layer))
        Linear on cpu: 2 tensors, 64 bytes, in ... s
          replay: 2 (weight, bias)"""


def document_inits(function: Function) -> Function:
    """Replace INITS in a docstring by what each ``init=`` gives, and add an example."""
    named = [f'* ``"{name}"``: {fill.gives};' for name, fill in FILL_BY_INIT.items()]
    named.append(f"* a path or a state dict: {CheckpointFill.gives}.")
    item = textwrap.TextWrapper(width=88, subsequent_indent=" " * 14)
    item.initial_indent = " " * 12
    lines = "\n".join(item.fill(line) for line in named).strip()
    text = (function.__doc__ or "").replace("INITS", lines)
    function.__doc__ = text.rstrip() + EXAMPLE
    return function
