"""Describe a state dictionary that did not fit a module, by the frames of the error."""

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from meta_magic.torch_private.module_internals import (
    buffers_of,
    names_not_persistent,
    parameters_of,
    walk_modules,
)
from meta_magic.trace.failed_call import Loading

__all__ = ["describe_loading", "find_loading"]

LOADING = nn.Module.load_state_dict.__code__


class Loaded(NamedTuple):
    """A call of ``load_state_dict`` that raised.

    Attributes:
        module: The module.
        state: What was to be loaded.
    """

    module: nn.Module
    state: Mapping[str, Any]


def find_loading(frames: Sequence[FrameType]) -> Loaded | None:
    """Return which state was to be loaded into what, where that raised."""
    for frame in reversed(frames):
        if frame.f_code is LOADING:
            module, state = (frame.f_locals[name] for name in ("self", "state_dict"))
            return Loaded(module, state) if isinstance(state, Mapping) else None
    return None


def describe_loading(
    loaded: Loaded, owner: str, given: str, number: Callable[[Tensor], int]
) -> Loading:
    """Return the record of a state that did not fit.

    Args:
        loaded: What was to be loaded.
        owner: How the user's code writes the module.
        given: How it writes the state.
        number: Returns the number of a tensor among the operands.
    """
    own, state = list_tensors(loaded.module), loaded.state
    pairs = [
        (name, number(tensor), number(state[name]))
        for name, tensor in own.items()
        if isinstance(state.get(name), Tensor) and state[name].shape != tensor.shape
    ]
    return Loading(
        owner=owner,
        given=given,
        pairs=tuple(pairs),
        missing=tuple(name for name in own if name not in state),
        unexpected=tuple(str(name) for name in state if name not in own),
        holders=tuple(
            str(key)
            for key, value in state.items()
            if isinstance(value, Mapping) and own and {*own} <= {*value}
        ),
    )


def list_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return what a state dictionary of a module holds, by name."""
    tensors = {}
    for fqn, part in walk_modules(module):
        left = names_not_persistent(part)
        kept = {n: t for n, t in buffers_of(part).items() if n not in left}
        for name, tensor in {**parameters_of(part), **kept}.items():
            if tensor is not None:
                tensors[f"{fqn}.{name}" if fqn else name] = tensor
    return tensors
