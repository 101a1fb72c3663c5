"""What a notebook's or a script's variables hold that is on meta still."""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from meta_magic.materializing.targets import find_in_module
from meta_magic.materializing.walk import walk
from meta_magic.recording.identities.frame_kinds import OWN, is_library, is_stdlib
from meta_magic.recording.identities.origins import find_origin, has_origins
from meta_magic.session.operand_names import IPYTHONS
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import list_script_tensors, walk_modules
from meta_magic.torch_private.tensor_internals import is_on_meta

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Variables", "find_on_meta", "is_recorded", "list_variables"]

MAX_FRAMES: Final = 100


class Variables:
    """Variables as one object, of which what can be made real is made so.

    Args:
        namespace: Names and values; those that begin with ``_`` are left out.
    """

    def __init__(self, namespace: Mapping[str, object]) -> None:
        for name, value in list(namespace.items()):
            if not name.startswith("_") and name not in IPYTHONS:
                self.__dict__[name] = value


def list_variables() -> dict[str, Any]:
    """Return the variables of the callers' code and of the main module, by name."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not (file.startswith(OWN) or is_library(file) or is_stdlib(file)):
            found = {**frame.f_globals, **frame.f_locals, **found}
        frame = frame.f_back
    return {**vars(sys.modules["__main__"]), **found}


def find_on_meta(
    namespace: Mapping[str, object], without: Collection[int] = ()
) -> Iterator[str]:
    """Yield how one writes what variables hold that a recording made on meta.

    A module stands for all that it holds.

    Args:
        namespace: The variables.
        without: The ``id`` of the tensors that are not named.
    """
    if not has_origins():
        return
    known = {*without}
    with DisableTorchFunction():
        for path, found in walk(Variables(namespace)):
            if id(found) in known:
                continue
            known.add(id(found))
            tensors = [found] if isinstance(found, Tensor) else list_tensors(found)
            if any(is_on_meta(tensor) and is_recorded(tensor) for tensor in tensors):
                yield path.removeprefix(".")


def list_tensors(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a module, scripted or not."""
    parts = [part for _, part in walk_modules(module)]
    scripted = [tensor for m in parts for _, _, tensor in list_script_tensors(m)]
    return [*scripted, *(held.tensor for held in find_in_module(module, "", set()))]


def is_recorded(tensor: Tensor) -> bool:
    """Whether a recording made a tensor, or met it."""
    try:
        return find_origin(tensor.untyped_storage()) is not None
    except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
        return bool(is_on_meta(tensor))
