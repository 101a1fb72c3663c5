"""Fill targets from a checkpoint, and what it lacks from the recording."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError
from meta_magic.materializing.checkpoint import Entry, shorten
from meta_magic.materializing.fillings import EmptyFilling, Fill, Put
from meta_magic.materializing.report import Filling
from meta_magic.materializing.targets import Held, Target
from meta_magic.replaying.machine import real_torch
from meta_magic.replaying.memory import allocate, make_view

__all__ = ["CheckpointFilling", "match_names"]


class CheckpointFilling:
    """Assigns the tensors of a checkpoint, without a copy where they fit as they are.

    Args:
        targets: What is to be made.
        entries: The checkpoint, matched by :func:`match_names`.
        device: Where.
        fill_rest: Returns what fills the targets that the checkpoint lacks.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        entries: Mapping[str, Entry],
        device: torch.device,
        fill_rest: Callable[[Sequence[Target]], Fill],
    ) -> None:
        self._device = device
        self._entries = entries
        self._loaded = [t for t in targets if any(h.name in entries for h in t.held)]
        rest = [target for target in targets if target not in self._loaded]
        self.rest: Fill = fill_rest(rest) if rest else EmptyFilling([], device)
        self.n_work = self.rest.n_work + sum(target.nbytes for target in self._loaded)

    def filled_by(self, target: Target) -> Filling:
        """Say whether the checkpoint has the target."""
        return "checkpoint" if target in self._loaded else self.rest.filled_by(target)

    def peak_nbytes(self) -> int:
        """Return the most bytes held; none for what is mapped from a file."""
        copied = sum(
            target.nbytes
            for target in self._loaded
            if self._device.type != "cpu" or not is_plain(target)
        )
        return copied + self.rest.peak_nbytes()

    def run(self, put: Put) -> Iterator[int]:
        """Load all targets."""
        yield from self.rest.run(put)
        for target in self._loaded:
            with real_torch():
                self._load(target, put)
            yield target.nbytes

    def _load(self, target: Target, put: Put) -> None:
        named = [held for held in target.held if held.name in self._entries]
        if is_plain(target):
            # The last of several names, as load_state_dict has it.
            tensor = self._entries[named[-1].name].load()
            wanted = target.geometry_of(named[-1].tensor)
            is_alike = (
                tensor.dtype == wanted.dtype
                and tensor.device == self._device
                and tensor.stride() == wanted.stride
                and not (tensor.is_conj() or tensor.is_neg())
                and type(tensor) is Tensor
            )
            if is_alike:
                put(target, tensor)
                return
        storage = allocate(target.nbytes, self._device)
        for held in named:
            view = make_view(storage, target.geometry_of(held.tensor))
            view.copy_(self._entries[held.name].load())
        put(target, storage)


def is_plain(target: Target) -> bool:
    """Whether one tensor covers a target, in however many places."""
    first, *others = target.tensors
    return not others and first.nbytes == target.storage.nbytes()


def match_names(held: Sequence[Held], entries: Mapping[str, Entry]) -> None:
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
