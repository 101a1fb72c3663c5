"""A fill: a source of content for tensors, as materialize asks for it.

``Fill`` lists what each has; ``EmptyFill`` is the simplest, and the base class of fills
that write tensor by tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.report import UNINITIALIZED, Forecast
from meta_magic.materializing.targets import Held, Target
from meta_magic.replaying.call_runner import allocate, make_view
from meta_magic.trace.program import Program

Content: TypeAlias = UntypedStorage | Tensor
"""What a target gets: a storage like its own, or a tensor to replace its only one."""

State: TypeAlias = Literal["current", "constructed"]
STATES: Final[tuple[State, ...]] = get_args(State)

Put: TypeAlias = Callable[[Target, Content], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is to be filled.

    Attributes:
        root: What is made real: a module, or another object that holds tensors.
        device: Where the content is made; each target has the device that it is put on.
        held: All tensors of the root, under each of their names, and their companions.
        targets: Their storages that are on meta.
        program: The recording to replay, as it was at its end; None for the latest one
            of each tensor.
        state: Which content a replay gives: ``current``, that after the cell, or
            ``constructed``, that before the first use.
        on_meta: Companions that stay on meta, each with the reason.
        cleared: States of optimizers that are cleared.
    """

    root: object
    device: torch.device
    held: Sequence[Held]
    targets: Sequence[Target]
    program: Program | None
    notes: Sequence[str] = ()
    state: State = "current"
    modules: Sequence[tuple[str, nn.Module]] = ()
    on_meta: Sequence[tuple[Held, str]] = ()
    cleared: Sequence[Held] = ()


class Fill(Protocol):
    """A source of content, planned and not begun."""

    @property
    def targets(self) -> Sequence[Target]:
        """Storages that get content: on meta, or real ones that are written again."""

    @property
    def n_work(self) -> int:
        """The whole work, in the unit that ``run`` yields."""

    @property
    def n_operators(self) -> int:
        """Recorded calls that run again."""

    def forecast(self) -> Forecast:
        """Return what will be replayed."""

    def peak_nbytes(self) -> int:
        """Return the most bytes that are held at any moment."""

    def run(self, put: Put) -> Iterator[int]:
        """Make the content of all targets, in ``RealTorch``; yield each step's work."""

    def finish(self) -> Sequence[str]:
        """Do what remains when the module is real; return notes for the user."""

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Return, at the end, the source of a tensor's content."""


class EmptyFill:
    """``init="empty"``: memory without content; a subclass may :meth:`write` it."""

    gives: ClassVar = "nothing; all is uninitialized memory"
    source: ClassVar = UNINITIALIZED
    """How the report names the source of a tensor's content."""

    def __init__(self, task: Task) -> None:
        self.targets = task.targets
        self.n_work = sum(target.nbytes for target in task.targets)
        self.n_operators = 0

    def forecast(self) -> Forecast:
        """Return that nothing is replayed."""
        return Forecast()

    def peak_nbytes(self) -> int:
        """Return the bytes of all targets."""
        return self.n_work

    def run(self, put: Put) -> Iterator[int]:
        """Allocate and write all targets."""
        for target in self.targets:
            storage = allocate(target.nbytes, target.device)
            for tensor in target.tensors:
                real = make_view(storage, target.geometry_of(tensor))
                try:
                    self.write(real)
                except RuntimeError as error:
                    raise MaterializeError(
                        f"cannot write {target.name!r}, {real.dtype} of shape "
                        f"{tuple(real.shape)}: {error}"
                    ) from error
            put(target, storage)
            yield target.nbytes

    def write(self, tensor: Tensor) -> None:
        """Write a target's real tensor, of shared memory one after the other."""

    def finish(self) -> Sequence[str]:
        """Do nothing more."""
        return ()

    def filled_by(self, _target: Target, _tensor: Tensor, /) -> str:
        """Return the source."""
        return self.source


TensorPart: TypeAlias = tuple[slice, ...]
"""A part of a tensor: for each dimension where it begins and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One tensor of a checkpoint.

    Attributes:
        source: The file or mapping, as messages name it.
        load: Returns the tensor, or a part of it, each time another object; from a file
            on the CPU all of it is mapped, not read.
    """

    source: str
    shape: tuple[int, ...]
    load: Callable[[TensorPart | None], Tensor]
