"""A planned materialization: what it takes, and how it is carried out.

``Preparation.carry_out`` makes the content; ``Installation`` swaps it into the tensors
on meta, which stay the same objects: a module, an optimizer or a variable that holds
one then holds a real tensor.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError
from meta_magic.materializing.companions import clear_states, is_leaf, keeps_gradient
from meta_magic.materializing.fills.protocol import Content, Fill, Task
from meta_magic.materializing.report import (
    KEPT,
    LEFT,
    FilledTensor,
    Forecast,
    MaterializeReport,
    check_budget,
    format_names,
)
from meta_magic.materializing.targets import (
    Held,
    Target,
    Variables,
    address_of,
    find_modules,
    find_on_meta,
    list_variables,
)
from meta_magic.recording.identities.storages import as_bytes
from meta_magic.replaying.call_runner import make_view
from meta_magic.torch_private.interrupts import Interrupts
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import buffers_of, parameters_of
from meta_magic.torch_private.tensor_internals import (
    is_view,
    is_wrapper,
    mark_graph_lost,
    read_hooks,
    release_retained,
    restore_history,
    set_hooks,
    swap_tensor_impl,
)

Progress: TypeAlias = Callable[[float], object]


@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation:
    """A materialization that is planned and not begun."""

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
        """Bytes of the new tensors."""
        return sum(target.nbytes for target in self.targets)

    @cached_property
    def peak_nbytes(self) -> int:
        """The most bytes that are held at any moment."""
        return self.fill.peak_nbytes()

    @property
    def fits(self) -> bool:
        """Whether enough bytes are free."""
        try:
            self._check_budgets(self.peak_nbytes)
        except MaterializeError:
            return False
        return True

    @property
    def forecast(self) -> Forecast:
        """What is replayed, why, and about how long that takes."""
        return self.fill.forecast()

    def carry_out(self, progress: Progress | None = None) -> MaterializeReport:
        """Make everything real, or leave everything as it is."""
        started = time.perf_counter()
        needed = self.peak_nbytes
        self._check_budgets(needed)
        contents = self._make(progress)
        gradients, n_dropped = self._find_gradients()
        installation = Installation([*self._pair(contents)], gradients)
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
        try:
            notes = self.fill.finish()
            for target, content in contents.items():
                if not target.is_meta and not isinstance(content, Tensor):
                    as_bytes(target.storage).copy_(as_bytes(content))
            replaced = check_filled(self.task)
        except BaseException:
            installation.undo()
            raise
        on_meta = {id(item.tensor) for item, _ in self.task.on_meta}
        without = on_meta or {id(self.task.root)}
        others = describe_losses(self.task, n_dropped)
        return MaterializeReport(
            module=type(self.task.root).__name__,
            device=self.device,
            tensors=tuple(self._describe_tensors()),
            nbytes=self.nbytes,
            peak_nbytes=needed,
            n_operators=self.fill.n_operators,
            seconds=time.perf_counter() - started,
            notes=(*self.task.notes, *others, *notes, *replaced),
            on_meta=tuple(find_on_meta(list_variables(), without)),
        )

    def _check_budgets(self, needed: int) -> None:
        """Refuse what does not fit, given the bytes at its peak."""
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

    def _find_gradients(self) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Return (tensor, gradient) where both are made real, and how many are not."""
        tensors = [t for target in self.targets for t in target.tensors]
        with DisableTorchFunction():
            pairs = [(t, t.grad) for t in tensors if keeps_gradient(t)]
        made = set(map(id, tensors))
        kept = [(t, grad) for t, grad in pairs if grad is not None and id(grad) in made]
        return kept, sum(grad is not None for _, grad in pairs) - len(kept)

    def _pair(self, made: Mapping[Target, Content]) -> Iterator[tuple[Tensor, Tensor]]:
        real: dict[int, Tensor] = {}
        for target in self.targets:
            content = made[target]
            for tensor in target.tensors:
                if isinstance(content, Tensor):
                    real[id(tensor)] = content
                else:
                    real[id(tensor)] = make_view(content, target.geometry_of(tensor))
                yield tensor, real[id(tensor)]
        held = {id(item.tensor): item.tensor for t in self.targets for item in t.held}
        for number in held.keys() - real.keys():
            yield held[number], wrap_again(held[number], real)

    def _describe_tensors(self) -> Iterator[FilledTensor]:
        filled_by = {
            id(tensor): self.fill.filled_by(target, tensor)
            for target in self.fill.targets
            for tensor in (*target.tensors, *(item.tensor for item in target.held))
        }
        first: dict[int, str] = {}
        for held in self.task.held:
            tensor = held.tensor
            name = first.setdefault(address_of(tensor), held.name)
            tied_to = None if name == held.name else name
            yield describe_tensor(held, filled_by.get(id(tensor), KEPT), tied_to)
        for held, _ in self.task.on_meta:
            yield describe_tensor(held, LEFT)


def describe_tensor(held: Held, source: str, tied: str | None = None) -> FilledTensor:
    """Return the record of a tensor."""
    return FilledTensor(
        name=held.name,
        kind=held.kind,
        filled_by=source,
        shape=tuple(held.tensor.shape),
        dtype=held.tensor.dtype,
        tied_to=tied,
        device=held.tensor.device,
    )


def check_filled(task: Task) -> list[str]:
    """Return notes on tensors that are not those that were filled; refuse meta ones."""
    filled = {id(item.tensor) for item in task.held}
    on_meta = {id(item.tensor) for item, _ in task.on_meta}
    is_whole = not isinstance(task.root, Variables)
    others = [
        (f"{fqn}.{name}" if fqn else name, tensor)
        for fqn, module in find_modules(task.root)
        if not isinstance(module, torch.jit.ScriptModule)
        for tensors in (parameters_of(module), buffers_of(module))
        if tensors
        for name, tensor in tensors.items()
        if tensor is not None and id(tensor) not in on_meta
        if tensor.is_meta or (is_whole and id(tensor) not in filled)
    ]
    names = [repr(name) for name, tensor in others if tensor.is_meta]
    if names:
        raise MaterializeError(
            f"{', '.join(names)} would still be on meta: while it was made real on "
            f"{task.device}, the module put another tensor in its place, as "
            "reset_parameters() or progress= may do. Choose another init=, or "
            "materialize the submodules one by one"
        )
    why = "is not the tensor that was filled: the module replaced it meanwhile"
    return [f"{name} {why}" for name, _ in others]


def describe_losses(task: Task, n_gradients: int) -> Iterator[str]:
    """Yield notes on dropped gradients, cleared states and tensors still on meta."""
    if n_gradients:
        yield f"{n_gradients:,} gradients were dropped"
    yield from clear_states(task.held, task.cleared)
    names: dict[str, list[str]] = {}
    for held, why in task.on_meta:
        names.setdefault(why, []).append(held.name)
    for why, found in names.items():
        yield f"left on meta: {format_names(found)}: {why}"


class Installation:
    """Tensors on meta and the real tensors to put below them; all or none.

    ``torch.utils.swap_tensors`` refuses tensors that a graph or a weak reference holds,
    which does not matter here. ``pairs`` are tensors on meta, each with a real one;
    ``gradients`` are tensors with theirs.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        gradients: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        self._pairs = pairs
        self._gradients = gradients
        self._done: list[tuple[Tensor, Tensor]] = []
        self._released: list[tuple[Tensor, Tensor]] = []
        self.n_installed = 0

    def install(self) -> None:
        """Put all in place. An interrupt waits, and then all are taken out again."""
        interrupts = hold_interrupts()
        with interrupts, DisableTorchFunction(), torch.no_grad():
            try:
                # All before the first swap: a view's flag may be that of its base.
                for tensor, real in self._pairs:
                    if real.is_floating_point() or real.is_complex():
                        if tensor.requires_grad and not is_leaf(tensor):
                            mark_graph_lost(real)
                        else:
                            real.requires_grad_(tensor.requires_grad)
                for tensor, real in self._pairs:
                    # The graph holds a weak reference to a tensor that retains its
                    # gradient, and torch refuses to swap such a tensor.
                    if not is_view(tensor) and tensor.retains_grad:
                        self._released.append((tensor, release_retained(tensor)))
                    swap(tensor, real)
                    self._done.append((tensor, real))
                    self.n_installed += 1
                for pair in self._gradients:
                    put_gradient(*pair)
            except BaseException:
                self._undo()
                raise
            if interrupts.pending:
                self._undo()

    def undo(self) -> None:
        """Take all out again."""
        with hold_interrupts(), DisableTorchFunction():
            self._undo()

    def _undo(self) -> None:
        while self._done:
            swap(*self._done.pop())
        while self._released:
            tensor, history = self._released.pop()
            swap(tensor, restore_history(history, tensor))
            tensor.retain_grad()


def wrap_again(tensor: Any, real: Mapping[int, Tensor]) -> Tensor:
    """Return a wrapper such as a DTensor, around real tensors."""
    if not is_wrapper(tensor):
        return real.get(id(tensor), tensor)
    names, context = tensor.__tensor_flatten__()
    held = {name: getattr(tensor, name) for name in names}
    parts = {
        name: wrap_again(one, real) if isinstance(one, Tensor) else one
        for name, one in held.items()
    }
    size, stride = tensor.size(), tensor.stride()
    made: Tensor = type(tensor).__tensor_unflatten__(parts, context, size, stride)
    return made


def swap(tensor: Tensor, real: Tensor) -> None:
    """Exchange what is below two tensor objects; hooks stay with the first object."""
    hooks = read_hooks(tensor)
    swap_tensor_impl(tensor, real)
    set_hooks(tensor, hooks)


def put_gradient(tensor: Tensor, gradient: Tensor) -> None:
    """Give a tensor a gradient, of another dtype or shape where ``.data =`` made it."""
    if gradient.dtype != tensor.dtype:
        tensor.grad_dtype = None  # the default is its own dtype
    if gradient.shape == tensor.shape:
        tensor.grad = gradient
        return
    data = tensor.data
    tensor.data = data.new_empty(gradient.shape)
    tensor.grad = gradient
    tensor.data = data


def hold_interrupts() -> Interrupts:
    """Return a context manager in which each interrupt waits."""
    interrupts = Interrupts()
    interrupts.is_held = True
    return interrupts
