"""A materialization that is planned: what it takes, and doing it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError
from meta_magic.materializing.budget import check_budget
from meta_magic.materializing.companions import keeps_gradient
from meta_magic.materializing.fills.protocol import Content, Fill, Task
from meta_magic.materializing.forecast import Forecast
from meta_magic.materializing.install import Installation
from meta_magic.materializing.left_on_meta import describe
from meta_magic.materializing.report import (
    KEPT,
    LEFT,
    FilledTensor,
    MaterializeReport,
)
from meta_magic.materializing.targets import Held, Target, address_of, find_modules
from meta_magic.materializing.variables import Variables, find_on_meta, list_variables
from meta_magic.recording.identities.storage_bytes import as_bytes
from meta_magic.replaying.memory import make_view
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import buffers_of, parameters_of

__all__ = ["Preparation", "Progress"]

Progress: TypeAlias = Callable[[float], object]


@dataclass(frozen=True, kw_only=True, eq=False)
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
        """Where the content of the module is made."""
        return self.task.device

    @property
    def targets(self) -> Sequence[Target]:
        """The storages that are on meta."""
        return self.task.targets

    @property
    def nbytes(self) -> int:
        """Bytes that the new tensors take."""
        return sum(target.nbytes for target in self.targets)

    @cached_property
    def peak_nbytes(self) -> int:
        """The most bytes that will be held at any moment."""
        return self.fill.peak_nbytes()

    @property
    def fits(self) -> bool:
        """Whether as many bytes are free as it takes."""
        try:
            self._check_budgets(self.peak_nbytes)
        except MaterializeError:
            return False
        return True

    @property
    def forecast(self) -> Forecast:
        """What will be replayed, for what, and about how long that takes."""
        return self.fill.forecast()

    def carry_out(self, progress: Progress | None = None) -> MaterializeReport:
        """Do it.

        Raises:
            MaterializeError: It failed, or does not fit; the module is as it was.
        """
        started = time.perf_counter()
        needed = self.peak_nbytes
        self._check_budgets(needed)
        contents = self._make(progress)
        kept, n_dropped = self._find_gradients()
        installation = Installation([*self._pair(contents)], kept)
        self._install(installation)
        try:
            notes = self.fill.finish()
            write_anew(contents)
            replaced = look_again(self.task)
        except BaseException:
            installation.undo()
            raise
        left = {id(place.tensor) for place, _ in self.task.left}
        others = describe(self.task, n_dropped)
        return MaterializeReport(
            module=type(self.task.root).__name__,
            device=self.device,
            tensors=tuple(self._describe_tensors()),
            nbytes=self.nbytes,
            peak_nbytes=needed,
            n_operators=self.fill.n_operators,
            seconds=time.perf_counter() - started,
            notes=(*self.task.notes, *others, *notes, *replaced),
            on_meta=tuple(find_on_meta(list_variables(), left)),
        )

    def _check_budgets(self, needed: int) -> None:
        """Refuse what does not fit, given the bytes at its peak.

        Raises:
            MaterializeError: Some device has fewer bytes free.
        """
        what = f"a {type(self.task.root).__name__}"
        check_budget(what, self.device, needed, self.targets)
        for device in {target.device for target in self.targets} - {self.device}:
            there = [target for target in self.targets if target.device == device]
            nbytes = sum(target.nbytes for target in there)
            check_budget(what, device, nbytes, there)

    def _make(self, progress: Progress | None) -> dict[Target, Content]:
        contents: dict[Target, Content] = {}
        done, total = 0, 1 if progress is None else max(self.fill.n_work, 1)
        try:
            for n_done in self.fill.run(contents.__setitem__):
                done += n_done
                if progress is not None:
                    progress(min(done / total, 1.0))
        except torch.OutOfMemoryError as error:
            when = "" if progress is None else f" after {done / total:.0%}"
            raise MaterializeError(
                f"{self.device} ran out of memory{when}: {error}"
            ) from error
        if progress is not None and done < total:
            progress(1.0)
        return contents

    def _install(self, installation: Installation) -> None:
        """Put all real tensors in place.

        Raises:
            MaterializeError: Torch refuses to exchange one; none is.
        """
        try:
            installation.install()
        except RuntimeError as error:
            n_done = installation.n_installed
            tensors = [t for target in self.targets for t in target.tensors]
            refused = tensors[n_done] if n_done < len(tensors) else None
            names = [h.name for h in self.task.held if h.tensor is refused]
            raise MaterializeError(
                f"cannot exchange {', '.join(map(repr, names)) or 'a tensor'} for a "
                "real one while something below Python refers to it weakly, as "
                "retain_grad() does until the graph is gone: hold its detach(), or "
                f"materialize before that. Torch says: {error}"
            ) from error

    def _find_gradients(self) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Return the tensors whose gradient is made real, with it.

        And how many others there are that have one.
        """
        tensors = [t for target in self.targets for t in target.tensors]
        with DisableTorchFunction():
            pairs = [(t, t.grad) for t in tensors if keeps_gradient(t)]
        made = set(map(id, tensors))
        kept = [(t, grad) for t, grad in pairs if grad is not None and id(grad) in made]
        return kept, sum(grad is not None for _, grad in pairs) - len(kept)

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
        tied_to: str | None
        for held in self.task.held:
            tensor = held.tensor
            tied_to = first.setdefault(address_of(tensor), held.name)
            tied_to = None if tied_to == held.name else tied_to
            yield describe_tensor(held, filled_by.get(id(tensor), KEPT), tied_to)
        for held, _ in self.task.left:
            yield describe_tensor(held, LEFT)


def build_tensor(target: Target, tensor: Tensor, content: Content) -> Tensor:
    """Return the real tensor for one on meta."""
    if isinstance(content, Tensor):
        return content
    return make_view(content, target.geometry_of(tensor))


def describe_tensor(
    held: Held, filled_by: str, tied_to: str | None = None
) -> FilledTensor:
    """Return the record of a tensor."""
    return FilledTensor(
        name=held.name,
        kind=held.kind,
        filled_by=filled_by,
        shape=tuple(held.tensor.shape),
        dtype=held.tensor.dtype,
        tied_to=tied_to,
        device=held.tensor.device,
    )


def look_again(task: Task) -> list[str]:
    """Return in words which tensors that the user holds are not those that were filled.

    Raises:
        MaterializeError: Some are on meta still.
    """
    filled = {id(place.tensor) for place in task.held}
    left = {id(place.tensor) for place, _ in task.left}
    is_whole = not isinstance(task.root, Variables)
    others = [
        (f"{fqn}.{name}" if fqn else name, tensor)
        for fqn, module in find_modules(task.root)
        if not isinstance(module, torch.jit.ScriptModule)
        for tensors in (parameters_of(module), buffers_of(module))
        if tensors
        for name, tensor in tensors.items()
        if tensor is not None and id(tensor) not in left
        if tensor.is_meta or (is_whole and id(tensor) not in filled)
    ]
    on_meta = [repr(name) for name, tensor in others if tensor.is_meta]
    if on_meta:
        raise MaterializeError(
            f"{', '.join(on_meta)} would still be on meta: while it was made real on "
            f"{task.device}, the module put another tensor in its place, as "
            "reset_parameters() or progress= may do. Choose another init=, or "
            "materialize the submodules one by one"
        )
    return [
        f"{name} is not the tensor that was filled: the module replaced it meanwhile"
        for name, _ in others
    ]


def write_anew(contents: Mapping[Target, Content]) -> None:
    """Write the content of those targets that are real already."""
    for target, content in contents.items():
        if not target.is_meta and not isinstance(content, Tensor):
            as_bytes(target.storage).copy_(as_bytes(content))
