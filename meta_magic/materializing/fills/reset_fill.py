"""``init="reset"``: call the initializers of the modules themselves.

They run when the module is real. ``WatchMode`` notes which tensors they wrote, so that
the report can say which are still uninitialized, and restores tensors that were real
before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar, Final, TypeAlias

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.protocol import EmptyFill, Task
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
