"""Call the initializers that modules bring along, and see what they reach."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MaterializeError
from meta_magic.recording.constants import as_bytes
from meta_magic.recording.live import tensors_in
from meta_magic.recording.torch_private import TorchDispatchMode

__all__ = ["reset_module"]

RESETS: Final = ("reset_parameters", "_reset_parameters")
WHOLE_MODEL: Final = "_init_weights"
"""The method by which transformers' models initialize each of their submodules."""


class Watch:
    """What the mode does: notes which storages are written, and puts some back.

    A mixin, so that torch does not import dynamo for it.

    Attributes:
        written: Addresses of the storages that operators wrote.
    """

    def __init__(self, kept: Iterable[int]) -> None:
        super().__init__()
        self.written: set[int] = set()
        self._kept = set(kept)
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator and note what it writes."""
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        given |= kwargs or {}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(given.get(argument.name)):
                    self._note(tensor.untyped_storage())
        return func(*args, **(kwargs or {}))

    def _note(self, storage: UntypedStorage) -> None:
        address = storage._cdata
        if address in self._kept and address not in self._saved:
            now = as_bytes(storage)
            self._saved[address] = (now, now.clone())
        self.written.add(address)

    def put_back(self) -> None:
        """Give the kept storages the content that they had."""
        for now, before in self._saved.values():
            now.copy_(before)


class WatchMode(Watch, TorchDispatchMode):
    """The mode that is entered."""


def reset_module(module: nn.Module, kept: Iterable[int]) -> set[int]:
    """Initialize a module by what its submodules bring along, children first.

    Args:
        module: The module; all of it real.
        kept: Addresses of the storages that are to stay as they are, also if it fails.

    Returns:
        The addresses of the storages that were written.

    Raises:
        MaterializeError: An initializer failed.
    """
    watch = WatchMode(kept)
    try:
        with torch.no_grad(), watch:
            for owner, name, call in find_resets(module):
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
    module: nn.Module, inherited: Callable[[nn.Module], object] | None = None
) -> Iterator[tuple[nn.Module, str, Callable[[], object]]]:
    """Yield module, name and call of each initializer, children first."""
    initialize = getattr(module, WHOLE_MODEL, None) or inherited
    for child in module.children():
        yield from find_resets(child, initialize)
    for name in RESETS:
        method = getattr(module, name, None)
        if callable(method):
            yield module, name, method
            break
    if initialize is not None:
        yield module, WHOLE_MODEL, lambda: initialize(module)
