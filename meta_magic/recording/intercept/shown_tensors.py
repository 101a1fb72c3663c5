"""What a tensor on meta is written as: with its values, where that takes little.

Torch's own function is replaced, and not ``Tensor.__repr__`` answered in a mode: it
writes what is printed in hooks and in tables, formatted, of a subclass, or within vmap.
"""

import re
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from meta_magic.recording.identities.call_sites import PACKAGE, TORCH_FILES
from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.value_source import ValueSource
from meta_magic.torch_private.modes import (
    DisableTorchFunction,
    functorch_interpreter,
    n_dispatch_modes,
)
from meta_magic.torch_private.replaced import TEXT_OF_TENSOR
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import join_suffixes, write_values

__all__ = ["ShownTensors"]

NO_VALUES: Final = "..."
SUFFIX: Final = re.compile(r",\s+(?=[a-z_]+=)")
"""What stands before each suffix, such as ``dtype=torch.int64``, in torch's texts."""

WRITING: Final = frozenset(
    {"__format__", "__repr__", "__str__", "extra_repr", "handle_torch_function"}
)
"""Functions that write a tensor because somebody asked for a text."""

ABOUT_GRADIENTS: Final = ("grad_fn=", "requires_grad=", "tangent=")
PLAIN: Final = (Tensor, nn.Parameter)

Write: TypeAlias = Callable[..., str]


class ShownTensors(Replacements):
    """Write tensors on meta with their values, within the block and in its thread.

    Args:
        registry: Knows tensors, and their places.
        values: Knows what a tensor holds.
        plan: Knows where a tensor would lie. None if nothing is recorded; else a mode
            is on, but in kernels, which write texts for themselves.
        has_places: Whether a tensor is written as one on the device that its cell
            named; else as one on meta, as plain code has it.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        values: ValueSource,
        plan: DevicePlan | None,
        *,
        has_places: bool = True,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._has_places = has_places
        self._registry = registry
        self._values = values
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self.wrap(TEXT_OF_TENSOR, self._wrap)

    def _is_ours(self, tensor: Tensor) -> bool:
        with DisableTorchFunction():
            return tensor.is_meta and threading.get_ident() == self._thread

    def _wrap(self, torch_writes: Write) -> Write:
        def write(tensor: Tensor, *, tensor_contents: str | None = None) -> str:
            has_mode = n_dispatch_modes() or functorch_interpreter() is not None
            is_in_kernel = self._plan is not None and not has_mode
            is_said = tensor_contents is not None or is_in_kernel
            if is_said or not self._is_ours(tensor):
                return torch_writes(tensor, tensor_contents=tensor_contents)
            return self._write(tensor, torch_writes)

        return write

    def _write(self, tensor: Tensor, torch_writes: Write) -> str:
        """Return the text of a tensor on meta; nothing that is unknown raises."""
        self._registry.note_deaths()
        with DisableTorchFunction():
            seen = self._registry.read(tensor)
        storage = seen[1]
        if storage is None:  # sparse, nested, or a wrapper of torch.func
            return torch_writes(tensor)
        try:
            real = self._values.peek(tensor, seen)
        except Exception:  # noqa: BLE001  a repr raises nothing
            real = None
        place = storage.place if self._has_places else None
        if real is None and place is None:  # a recording around may know more
            return torch_writes(tensor)
        if place is None and self._plan is not None and is_for_torch(sys._getframe()):
            place = self._plan.home
        with WithoutModes(), torch.no_grad():
            return describe(tensor, real, place, torch_writes)


def is_for_torch(frame: FrameType | None) -> bool:
    """Whether torch itself has a tensor written, in an error's text for example."""
    while frame is not None:
        code = frame.f_code
        if not (code.co_name in WRITING or code.co_filename.startswith(PACKAGE)):
            return code.co_filename.startswith(TORCH_FILES)
        frame = frame.f_back
    return False


def describe(
    tensor: Tensor,
    real: Tensor | None,
    place: torch.device | None,
    torch_writes: Write,
) -> str:
    """Return the text of a meta tensor.

    Args:
        tensor: The tensor.
        real: What it holds, if that is known.
        place: Where the code wants it: it is written as one that lies there; as one on
            meta, that has values, if nowhere by name.
        torch_writes: Writes as torch does.
    """
    if real is not None and real.layout is not torch.strided:
        return write_sparse(tensor, real, place, torch_writes)
    kind = type(tensor)
    indent = len("tensor(" if kind in PLAIN else f"{kind.__name__}(")
    values = NO_VALUES if real is None else write_values(real, indent)
    if place is None:
        return torch_writes(tensor, tensor_contents=values)
    head, *suffixes = split(torch_writes(tensor, tensor_contents=""))
    about: list[Any] = [] if place.type == "cpu" else [f"device='{place}'"]
    if real is None:
        about += [s for s in suffixes if not s.startswith("device=")]
    else:
        about += split(torch_writes(real.detach(), tensor_contents=""))[1:]
        about += [s for s in suffixes if s.startswith(ABOUT_GRADIENTS)]
    return join_suffixes(head + values, about, indent)


def write_sparse(
    tensor: Tensor, real: Tensor, place: torch.device | None, torch_writes: Write
) -> str:
    """Return the text of a sparse tensor; as ``describe``."""
    text = torch_writes(real.detach()).removesuffix(")")
    is_on_cpu = place is not None and place.type == "cpu"
    about = [] if is_on_cpu else [f"device='{place or 'meta'}'"]
    suffixes = split(torch_writes(tensor))
    about += [suffix for suffix in suffixes if suffix.startswith(ABOUT_GRADIENTS)]
    return ", ".join([text, *about]) + ")"


def split(text: str) -> list[str]:
    """Return the head of a tensor's text, and its suffixes."""
    return SUFFIX.split(text.removesuffix(")"))
