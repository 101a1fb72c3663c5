"""``torch.jit.save`` in a cell: C++ writes what is on meta, of which it has no bytes.

While it writes, a real tensor stands for each parameter and buffer of the module.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.errors import MissingValueError
from meta_magic.recording.intercept.saving import Saver, is_on_meta
from meta_magic.torch_private.module_internals import list_script_tensors

__all__ = ["ScriptSaver"]

CONSTANT: Final = "prim::Constant"
FROZEN: Final = (
    "torch.jit.save cannot write what torch.jit.freeze made constants of, on meta: "
    "freeze after the cell, when meta_magic.materialize has made the module real, or "
    "save before it is frozen."
)


class Held(NamedTuple):
    """A tensor of a scripted module.

    Attributes:
        owner: What torch holds it in.
        name: Its name there.
        tensor: The tensor.
    """

    owner: Any
    name: str
    tensor: Tensor


class ScriptSaver:
    """Saves scripted modules that a cell has on meta.

    Args:
        saver: Computes what their tensors hold.
    """

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def save(
        self, plain: Callable[..., Any], module: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call what writes a scripted module, with real tensors in it.

        Raises:
            MissingValueError: They cannot be computed, or take too much.
        """
        if any(map(is_on_meta, find_constants(module))):
            raise MissingValueError(FROZEN)
        held = list(find_held(module))
        tensors = [part.tensor for part in held]
        reals = self._saver.compute(tensors)
        try:
            for (owner, name, _), real in zip(held, reals, strict=True):
                owner.setattr(name, real)
            saved = plain(module, *args, **kwargs)
        finally:
            for owner, name, tensor in held:
                owner.setattr(name, tensor)
        if held:
            self._saver.note_saved("torch.jit.save", tensors)
        return saved


def find_constants(module: Any) -> Iterator[Tensor]:
    """Yield the tensors that stand in the code of a scripted module."""
    if not hasattr(module, "forward"):
        return
    graph = module.inlined_graph  # its nodes live as long as it does
    for node in graph.findAllNodes(CONSTANT):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")


def find_held(module: torch.jit.ScriptModule) -> Iterator[Held]:
    """Yield the tensors on meta of a scripted module and all that are in it."""
    for part in module.modules():
        for owner, name, tensor in list_script_tensors(part):
            if is_on_meta(tensor):
                yield Held(owner, name, tensor)
