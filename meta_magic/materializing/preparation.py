"""A materialization that is planned: what it takes, and doing it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError
from meta_magic.materializing.budget import check_budget
from meta_magic.materializing.fills.protocol import Content, Fill, Task
from meta_magic.materializing.install import Installation
from meta_magic.materializing.report import KEPT, FilledTensor, MaterializeReport
from meta_magic.materializing.targets import Target, address_of
from meta_magic.recording.identities.storage_bytes import as_bytes
from meta_magic.replaying.memory import make_view

__all__ = ["Preparation", "Progress"]

Progress: TypeAlias = Callable[[float], object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preparation:
    """A materialization that is planned and not begun.

    Attributes:
        task: What is made real, and where.
        fill: Where its content comes from.
    """

    task: Task
    fill: Fill

    @property
    def device(self) -> torch.device:
        """Where the module is made real."""
        return self.task.device

    @property
    def targets(self) -> Sequence[Target]:
        """The storages that are on meta."""
        return self.task.targets

    @property
    def nbytes(self) -> int:
        """Bytes that the module's new tensors take."""
        return sum(target.nbytes for target in self.targets)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that will be held at any moment."""
        return self.fill.peak_nbytes()

    def carry_out(self, progress: Progress | None = None) -> MaterializeReport:
        """Do it.

        Raises:
            MaterializeError: It failed, or does not fit; the module is as it was.
        """
        started = time.perf_counter()
        kind = type(self.task.module).__name__
        needed = self.peak_nbytes
        check_budget(f"a {kind}", self.device, needed, self.targets)
        contents = self._make(progress)
        n_gradients = self._count_gradients()
        installation = Installation(list(self._pair(contents)))
        installation.install()
        try:
            notes = self.fill.finish()
            write_anew(contents)
        except BaseException:
            installation.undo()
            raise
        dropped = [f"{n_gradients:,} gradients were dropped"] if n_gradients else []
        return MaterializeReport(
            module=kind,
            device=self.device,
            tensors=tuple(self._describe_tensors()),
            nbytes=self.nbytes,
            peak_nbytes=needed,
            n_operators=self.fill.n_operators,
            seconds=time.perf_counter() - started,
            notes=(*dropped, *notes),
        )

    def _make(self, progress: Progress | None) -> dict[Target, Content]:
        contents: dict[Target, Content] = {}
        done, total = 0, max(self.fill.n_work, 1)
        try:
            for nbytes in self.fill.run(contents.__setitem__):
                done += nbytes
                if progress is not None:
                    progress(min(done / total, 1.0))
        except torch.OutOfMemoryError as error:
            raise MaterializeError(
                f"{self.device} ran out of memory after {done / total:.0%}: {error}"
            ) from error
        if progress is not None and done < total:
            progress(1.0)
        return contents

    def _count_gradients(self) -> int:
        """Return how many tensors have a gradient, which real ones will not have."""
        return sum(
            tensor.is_leaf and tensor.grad is not None
            for target in self.targets
            for tensor in target.tensors
        )

    def _pair(
        self, contents: Mapping[Target, Content]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor on meta with the real one."""
        for target in self.targets:
            for tensor in target.tensors:
                yield tensor, build_tensor(target, tensor, contents[target])

    def _describe_tensors(self) -> Iterator[FilledTensor]:
        filled_by = {
            id(tensor): self.fill.filled_by(target, tensor)
            for target in self.fill.targets
            for tensor in target.tensors
        }
        first: dict[int, str] = {}
        for held in self.task.held:
            tensor = held.tensor
            tied_to = first.setdefault(address_of(tensor), held.name)
            yield FilledTensor(
                name=held.name,
                kind=held.kind,
                filled_by=filled_by.get(id(tensor), KEPT),
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                tied_to=None if tied_to == held.name else tied_to,
            )


def build_tensor(target: Target, tensor: Tensor, content: Content) -> Tensor:
    """Return the real tensor for one on meta."""
    if isinstance(content, Tensor):
        return content
    return make_view(content, target.geometry_of(tensor))


def write_anew(contents: Mapping[Target, Content]) -> None:
    """Write the content of those targets that are real already."""
    for target, content in contents.items():
        if not target.is_meta and not isinstance(content, Tensor):
            as_bytes(target.storage).copy_(as_bytes(content))
