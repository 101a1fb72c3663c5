"""Which fill each ``init=`` names; a new one is a class and a row here.

``init="reset"`` calls the modules' own ``reset_parameters()``: :class:`ResetFill`.
"""

import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypeVar

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.checkpoint_fill import (
    CheckpointFill,
    open_checkpoint,
)
from meta_magic.materializing.fills.protocol import (
    STATES,
    EmptyFill,
    Fill,
    MakesFill,
    Put,
    Task,
)
from meta_magic.materializing.fills.replay_fill import ReplayFill
from meta_magic.materializing.report import Forecast
from meta_magic.materializing.targets import Target, address_of, find_roots
from meta_magic.recording.identities.storages import as_bytes
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept.reported_devices import INITIALIZE
from meta_magic.torch_private.dispatcher import OpOverload, schema_of
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.tensor_internals import address_of_storage, list_parts

Initializer: TypeAlias = tuple[str, Callable[[nn.Module], object]]

RESETS: Final = ("reset_parameters", "_reset_parameters")


class ResetFill(EmptyFill):
    """Leaves the targets empty, and calls the modules' initializers in the end."""

    gives: ClassVar = (
        "what each submodule's ``reset_parameters`` and ``_init_weights`` give"
    )

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._root = task.root
        self._held = task.held
        self._reached: set[int] = set()

    def finish(self) -> Sequence[str]:
        """Call the initializers; tensors that were real before keep their values."""
        made = {id(held.tensor) for target in self.targets for held in target.held}
        others = [h.tensor for h in self._held if id(h.tensor) not in made]
        kept = {address_of(t) for t in others if t.layout is torch.strided}
        self._reached = reset_modules(self._root, kept)
        return super().finish()

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Return whether an initializer wrote to the storage of the tensor."""
        if address_of(tensor) in self._reached:
            return "reset"
        return super().filled_by(target, tensor)


class WatchMode(TorchDispatchMode):
    """Notes which storages are written."""

    def __init__(self, kept: Iterable[int]) -> None:
        super().__init__()
        self.written: set[int] = set()
        self._kept = set(kept)
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator and note what it writes."""
        arguments = schema_of(func).arguments
        given = dict(zip((a.name for a in arguments), args, strict=False))
        given |= kwargs or {}
        for argument in arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(given.get(argument.name)):
                    for part in list_parts(tensor):
                        self._note(part.untyped_storage())
        return func(*args, **(kwargs or {}))

    def _note(self, storage: UntypedStorage) -> None:
        address = address_of_storage(storage)
        if address in self._kept and address not in self._saved:
            now = as_bytes(storage)
            self._saved[address] = (now, now.clone())
        self.written.add(address)

    def put_back(self) -> None:
        """Restore the content of the kept storages."""
        for now, before in self._saved.values():
            now.copy_(before)


def reset_modules(root: object, kept: Iterable[int]) -> set[int]:
    """Call the initializers of real modules, children first; return what was written.

    The storages at the addresses ``kept`` keep their content, also if it fails.
    """
    watch = WatchMode(kept)
    try:
        with torch.no_grad(), watch:
            resets = (find_resets(module) for _, module in find_roots(root))
            for owner, name, call in chain.from_iterable(resets):
                try:
                    call()
                except Exception as error:
                    raise MaterializeError(
                        f"cannot reset: {name} of a {type(owner).__name__} raised "
                        f"{type(error).__name__}: {error}"
                    ) from error
    finally:
        watch.put_back()
    return watch.written


def find_resets(
    module: nn.Module, inherited: Initializer | None = None
) -> Iterator[tuple[nn.Module, str, Callable[[], object]]]:
    """Yield module, name and call of each initializer, children first."""
    own = ((name, getattr(module, name, None)) for name in INITIALIZE)
    found = next(((name, method) for name, method in own if method), inherited)
    for child in module.children():
        yield from find_resets(child, found)
    for name in RESETS:
        method = getattr(module, name, None)
        if callable(method):
            yield module, name, method
            break
    if found is not None:
        name, initialize = found
        yield module, name, lambda: initialize(module)


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

    ``own`` are the ``id`` of the tensors that ``init`` is about. The others are
    replayed: with ``init="replay"`` to their values after the cell, else to those when
    they were made.
    """
    make = FILL_BY_INIT.get(init) if isinstance(init, str) else None
    if make is ReplayFill:
        return make(task)
    rest = [t for t in task.targets if all(id(h.tensor) not in own for h in t.held)]
    asked = replace(task, targets=[t for t in task.targets if t not in rest])
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
