"""``init=`` a path or a state dict: a checkpoint, and for the rest the recording."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MaterializeError
from meta_magic.materializing.checkpoint_reader import (
    CheckpointEntry,
    shorten,
    unreadable,
)
from meta_magic.materializing.fills.empty_fill import EmptyFill
from meta_magic.materializing.fills.protocol import Content, Fill, Put, Task
from meta_magic.materializing.fills.replay_fill import ReplayFill
from meta_magic.materializing.forecast import Forecast
from meta_magic.materializing.targets import Held, Target
from meta_magic.replaying.memory import allocate, make_view

__all__ = ["CheckpointFill"]


class CheckpointFill:
    """Assigns the tensors of a checkpoint, without a copy where they fit as they are.

    What it lacks is replayed.

    Args:
        task: What is to be filled.
        entries: What the checkpoint has, by name.

    Raises:
        MaterializeError: The checkpoint is one of another module, or what it lacks
            cannot be replayed.
    """

    gives: ClassVar = (
        "a checkpoint, assigned without a copy where dtype and strides allow it; what "
        "it lacks is replayed"
    )

    def __init__(self, task: Task, entries: Mapping[str, CheckpointEntry]) -> None:
        match_names(task.held, entries)
        self.targets = task.targets
        self._entries = entries
        self._loaded = [
            target
            for target in task.targets
            if any(held.name in entries for held in target.held)
        ]
        self._rest = self._plan_rest(task)

    @property
    def n_work(self) -> int:
        """Bytes to be loaded, and what the rest takes."""
        return self._rest.n_work + sum(target.nbytes for target in self._loaded)

    def forecast(self) -> Forecast:
        """Return what is replayed for the rest."""
        return self._rest.forecast()

    @property
    def n_operators(self) -> int:
        """Recorded calls that run again for the rest."""
        return self._rest.n_operators

    def finish(self) -> Sequence[str]:
        """Finish the rest."""
        return self._rest.finish()

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Say whether the checkpoint has a tensor of the target."""
        is_loaded = any(
            held.tensor is tensor and held.name in self._entries for held in target.held
        )
        return "checkpoint" if is_loaded else self._rest.filled_by(target, tensor)

    def peak_nbytes(self) -> int:
        """Return the most bytes held; none for what is mapped from a file."""
        copied = sum(
            target.nbytes
            for target in self._loaded
            if target.device.type != "cpu" or not is_plain(target)
        )
        return copied + self._rest.peak_nbytes()

    def run(self, put: Put) -> Iterator[int]:
        """Load all targets."""
        in_part: dict[Target, Content] = {}
        loaded = set(self._loaded)

        def put_rest(target: Target, content: Content) -> None:
            if target in loaded:
                in_part[target] = content
            else:
                put(target, content)

        yield from self._rest.run(put_rest)
        for target in self._loaded:
            put(target, self._load(target, in_part.pop(target, None)))
            yield target.nbytes

    def _plan_rest(self, task: Task) -> Fill:
        """Return what replays all that the checkpoint lacks.

        Raises:
            MaterializeError: That cannot be done.
        """
        rest = [target for target in task.targets if self._find_missing(target)]
        if not rest:
            return EmptyFill(replace(task, targets=()))
        try:
            return ReplayFill(task, rest=rest)
        except MaterializeError as error:
            names = [name for target in rest for name in self._find_missing(target)]
            raise MaterializeError(
                f"the checkpoint lacks {shorten(names)}: {error}"
            ) from error

    def _find_missing(self, target: Target) -> list[str]:
        """Return the names of the tensors that the checkpoint has at no place."""
        there = {id(h.tensor) for h in target.held if h.name in self._entries}
        return [h.name for h in target.held if id(h.tensor) not in there]

    def _load(self, target: Target, filled: Content | None) -> Content:
        """Return what the checkpoint has for a target, on top of what filled it."""
        named = [held for held in target.held if held.name in self._entries]
        if filled is None and is_plain(target):
            # The last of several names, as load_state_dict has it.
            tensor, wanted = self._read(named[-1].name), named[-1].tensor
            is_alike = (
                tensor.dtype == (target.dtype or wanted.dtype)
                and tensor.device == target.device
                and tensor.stride() == wanted.stride()
                and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
                and type(tensor) is Tensor
            )
            if is_alike:
                return tensor
        storage = (
            filled
            if isinstance(filled, UntypedStorage)
            else allocate(target.nbytes, target.device)
        )
        for held in named:
            view = make_view(storage, target.geometry_of(held.tensor))
            self._copy(view, held.name)
        return storage

    def _read(self, name: str) -> Tensor:
        """Return a tensor of the checkpoint.

        Raises:
            MaterializeError: It cannot be read.
        """
        entry = self._entries[name]
        try:
            tensor = entry.load()
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            raise unreadable(entry.source, error) from error
        if tensor.shape != entry.shape:
            raise MaterializeError(
                f"{entry.source} has {name!r} as packed {tensor.dtype}, which torch "
                "does not unpack"
            )
        return tensor

    def _copy(self, view: Tensor, name: str) -> None:
        """Copy a tensor of the checkpoint, once where entries share their memory.

        Raises:
            MaterializeError: It has different values for one place in memory.
        """
        tensor = self._read(name)
        whole = tensor
        for dim, (size, stride) in enumerate(
            zip(view.shape, view.stride(), strict=True)
        ):
            if stride == 0 and size > 1:
                view, tensor = view.narrow(dim, 0, 1), tensor.narrow(dim, 0, 1)
        if tensor is not whole and not torch.equal(tensor.expand_as(whole), whole):
            raise MaterializeError(
                f"{name!r} is expanded in the module, so that some entries share their "
                "memory, and the checkpoint has different values for them"
            )
        view.copy_(tensor)


def is_plain(target: Target) -> bool:
    """Whether one tensor covers a target, in however many places."""
    first, *others = target.tensors
    return not others and first.nbytes == target.storage.nbytes()


def match_names(held: Sequence[Held], entries: Mapping[str, CheckpointEntry]) -> None:
    """Compare names and shapes of a module with those of a checkpoint.

    Raises:
        MaterializeError: The checkpoint has a name that the module lacks, or a tensor
            of another shape.
    """
    known = {place.name: place for place in held if place.is_persistent}
    unexpected = [name for name in entries if name not in known]
    if unexpected:
        raise MaterializeError(
            f"the checkpoint has {shorten(unexpected)}, which the module has not; it "
            f"has {shorten(known)}. Leave such names out, or strip their prefix"
        )
    for name, entry in entries.items():
        shape = tuple(known[name].tensor.shape)
        if entry.shape != shape:
            raise MaterializeError(
                f"the checkpoint has {name!r} with shape {entry.shape}, and the module "
                f"with shape {shape}"
            )
