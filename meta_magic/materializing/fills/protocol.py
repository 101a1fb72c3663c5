"""What fills the tensors of a module, as materialize asks for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.materializing.forecast import Forecast
from meta_magic.materializing.targets import Held, Target
from meta_magic.trace.program import Program

__all__ = ["STATES", "Content", "Fill", "MakesFill", "Put", "State", "Task"]

Content: TypeAlias = UntypedStorage | Tensor
"""What a target gets: a storage like its own, or a tensor in place of its only one."""

State: TypeAlias = Literal["current", "constructed"]

STATES: Final[tuple[State, ...]] = get_args(State)

Put: TypeAlias = Callable[[Target, Content], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is to be filled.

    Attributes:
        root: What is made real: a module, or another object that holds tensors.
        device: Where its content is made; each target says where it lies then.
        held: All tensors of it, at every place, and those that are made real with it.
        targets: The storages of these that are on meta.
        program: The recording to replay, as it was at its end; None for the latest one
            of each tensor.
        notes: What the user should know of where it will lie.
        state: When it had what a replay gives it: ``current`` for now, ``constructed``
            for before its first use.
        modules: The modules of the root, by name and at every place.
        left: What is used with the root and stays on meta, each with the reason.
        forgotten: What optimizers keep of their steps, and are to forget.
    """

    root: object
    device: torch.device
    held: Sequence[Held]
    targets: Sequence[Target]
    program: Program | None
    notes: Sequence[str] = ()
    state: State = "current"
    modules: Sequence[tuple[str, nn.Module]] = ()
    left: Sequence[tuple[Held, str]] = ()
    forgotten: Sequence[Held] = ()


class MakesFill(Protocol):
    """What a name of ``init=`` stands for: in general, a class of :class:`Fill`.

    Attributes:
        gives: What the tensors get, as the docstring of ``materialize`` has it.
    """

    gives: str

    def __call__(self, task: Task, /) -> "Fill":
        """Plan to fill what a task says."""


class Fill(Protocol):
    """A source of content, planned and not begun.

    What wraps another one hands on all that the other has to say.
    """

    @property
    def targets(self) -> Sequence[Target]:
        """What gets content: storages on meta, and real ones that are written anew."""

    @property
    def n_work(self) -> int:
        """What there is to do, by which progress is measured: in about nanoseconds.

        As many as the bytes where these are just loaded or written.
        """

    @property
    def n_operators(self) -> int:
        """Recorded calls that run again."""

    def forecast(self) -> Forecast:
        """Return what will be replayed."""

    def peak_nbytes(self) -> int:
        """Return the most bytes that will be held at any moment."""

    def run(self, put: Put) -> Iterator[int]:
        """Make the content of all targets; yield what each step did of the work.

        Under :func:`meta_magic.torch_private.snapshot.RealTorch`.
        """

    def finish(self) -> Sequence[str]:
        """Do what is left when the module is real; return what the user should know.

        If it raises, the module is put back to how it was.
        """

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Say, at the end, where the content of a tensor of a target came from."""
