"""Call the initializers that modules bring along, and see what they reach."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.targets import own_and_nested
from meta_magic.recording.live import tensors_in
from meta_magic.recording.torch_private import TorchDispatchMode

__all__ = ["reset_module"]

RESETS: Final = ("reset_parameters", "_reset_parameters")
WHOLE_MODEL: Final = "_init_weights"
"""The method by which transformers' models initialize each of their submodules."""


class Watch:
    """What the mode does: notes which storages are written.

    A mixin, so that torch does not import dynamo for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator and note what it wrote."""
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        given |= kwargs or {}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(given.get(argument.name)):
                    self.written.add(tensor.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


class WatchMode(Watch, TorchDispatchMode):
    """The mode that is entered."""


def reset_module(module: nn.Module, made: set[int]) -> set[int]:
    """Initialize a module by what its submodules bring along, children first.

    Args:
        module: The module; all of it real.
        made: ``id`` of the tensors that are to be initialized; others are left alone.

    Returns:
        The addresses of the storages that were written.

    Raises:
        MaterializeError: An initializer failed.
    """
    watch = WatchMode()
    with torch.no_grad(), watch:
        for owner, name, call in find_resets(module):
            own = [tensor for _, _, tensor in own_and_nested(owner)]
            if own and not any(id(tensor) in made for tensor in own):
                continue
            with kept_as_is([tensor for tensor in own if id(tensor) not in made]):
                try:
                    call()
                except Exception as error:
                    raise MaterializeError(
                        f"cannot reset: {name} of a {type(owner).__name__} raised "
                        f"{type(error).__name__}: {error}"
                    ) from error
    return watch.written


@contextmanager
def kept_as_is(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put tensors back after the block as they were."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    yield
    for tensor, before in saved:
        tensor.detach().copy_(before)


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
