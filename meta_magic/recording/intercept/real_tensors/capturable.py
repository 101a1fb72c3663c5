"""Decide which real tensors become constants, and find their names in the cell.

Without the names, such as ``model.fc.weight``, an error would say "your real tensor"
and not which one. Read ``is_capturable`` and ``name_of_real`` first.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MixedDeviceError
from meta_magic.recording.identities.call_sites import OWN, is_library, read_locals
from meta_magic.recording.identities.tensors import QUANTIZED, name_tensors, tensors_in
from meta_magic.recording.rows.writers import Diagnostics
from meta_magic.recording.signatures.entries import Kwargs, OpTable
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.tensor_internals import address_of_storage, parts_of
from meta_magic.trace.units import format_bytes

RECURRENT: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that read the batch sizes of packed sequences, which stay real."""

READS_REAL: Final = frozenset(
    {"aten.copy_.default", "aten._pack_padded_sequence.default"}
    | {"aten._pad_packed_sequence.default"}
)
"""Operators that accept real tensors beside meta tensors."""


class MustBorrow(MixedDeviceError):  # noqa: N818  a request; an error if the tensor is no leaf
    """A real tensor that wants a gradient is used with meta tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        super().__init__(
            "real operators made a tensor, through which no gradient would flow back "
            "from meta (see .detach(), torch.no_grad(), or make it in the cell)"
        )


BY_PAIRS: Final = ("aten._foreach_", "aten._fused_")
"""Prefixes of operators on lists of tensors; only tensors of one pair are compared."""

INDEXING: Final = frozenset(
    {"aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put.default"}
    | {"aten.index_put_.default", "aten._index_put_impl_.default"}
)
"""Operators whose indices may be on the CPU, whatever the device of the first."""

NUMBERS: Final = INDEXING | frozenset(
    {"aten.fill_.Tensor", "aten.masked_fill.Tensor", "aten.masked_fill_.Tensor"}
    | {"aten.index_fill.int_Tensor", "aten.index_fill_.int_Tensor"}
)
"""Operators that accept a number on the CPU, besides elementwise operators."""


def takes_numbers(table: OpTable) -> bool:
    """Whether an operator accepts a number on the CPU beside tensors elsewhere."""
    if table.name in NUMBERS or table.name.startswith(BY_PAIRS):
        return True
    return torch.Tag.pointwise in table.func.tags


def is_capturable(tensor: Tensor, table: OpTable | None = None) -> bool:
    """Whether a tensor is real, and a constant can replace it."""
    if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter):
        return False
    is_dense = tensor.layout is torch.strided and tensor.dtype not in QUANTIZED
    if not is_dense or tensor.is_nested:
        return False
    if tensor.ndim or table is None or wants_gradient(tensor):
        return True
    return not takes_numbers(table)


def is_sizes(func: Any, tensor: Tensor) -> bool:
    """Whether a tensor holds the sizes of batches of packed sequences."""
    is_like_that = tensor.dtype is torch.int64 and tensor.ndim == 1
    return is_like_that and getattr(func, "__name__", "") in RECURRENT


def count_real(*values: object) -> int:
    """Return how many tensors in values are real."""
    with DisableTorchFunction():
        return sum(not tensor.is_meta for tensor in tensors_in(*values))


def wants_gradient(tensor: Tensor) -> bool:
    """Whether autograd would compute a gradient of a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def may_write(func: Any, kwargs: Kwargs) -> bool:
    """Whether a function may write its arguments."""
    name = getattr(func, "__name__", "")
    is_operator = name.startswith("__i") or name == "__setitem__"
    return is_operator or name.endswith("_") or kwargs.get("out") is not None


def find_on_meta(root: nn.Module) -> list[nn.Module] | None:
    """Return a module and all modules below it, or None if any tensor is real."""
    walked, opened = [root], set[int]()
    for module in walked:
        held = (*parameters_of(module).values(), *buffers_of(module).values())
        for tensor in held:  # a generator would take twice the time
            if tensor is not None and not tensor.is_meta:
                return None
        children = children_of(module)
        if children and id(module) not in opened:
            opened.add(id(module))
            walked += [m for m in children.values() if m is not None]
    return walked


def is_real(root: nn.Module) -> bool | None:
    """Whether a module holds a real tensor, or one below it; None without tensors."""
    for _, module in walk_modules(root):
        held = (*parameters_of(module).values(), *buffers_of(module).values())
        found = [tensor for tensor in held if tensor is not None]
        if found:
            return not all(tensor.is_meta for tensor in found)
    return None


MAX_NAMES: Final = 6

STAYS: Final = (
    "a call in the cell gives the lazy parameters of '{}' their sizes, so the module "
    "stays on meta after the cell: mm.materialize makes it real"
)


class RealNames:
    """Names the real tensors of a recording in one note."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._names: dict[str, None] = {}
        self._nbytes = 0
        self._n_captured = 0
        self._line: int | None = None

    def count(self, real: Tensor, *, is_named: bool) -> str | None:
        """Count the storage of a real tensor, and return its name if it is named."""
        nbytes = sum(part.untyped_storage().nbytes() for part in parts_of(real))
        if nbytes == real.itemsize:  # a single number needs no note
            return None
        if not self._n_captured:
            _, self._line = self._diagnostics.locate("")
        self._nbytes += nbytes
        self._n_captured += 1
        return self.add(real) if is_named else None

    def add(self, value: Tensor | nn.Module) -> str | None:
        """Name a tensor or a module; None after ``MAX_NAMES`` names."""
        name = name_of_real(value) if len(self._names) < MAX_NAMES else None
        if name is not None:
            self._names[name] = None
        return name

    def note_moved(self, module: nn.Module) -> None:
        """Note that a module with lazy parameters stays on meta after the cell."""
        name = name_of_real(module) or type(module).__name__
        self._diagnostics.note("state", STAYS.format(name))

    def finish(self) -> None:
        """Write the note."""
        if self._n_captured:
            names = ", ".join(f"'{name}'" for name in self._names)
            self._diagnostics.note_at(
                "real",
                f"{self._n_captured} real tensor{'s' * (self._n_captured > 1)} of "
                f"{format_bytes(self._nbytes)} beside meta tensors count as "
                f"constants{f': {names}' if names else ''}; they are unchanged",
                self._line,
            )


def name_of_real(value: Tensor | nn.Module) -> str | None:
    """Return the name of a real tensor or a module in the running code, if any."""
    return find_real(value)[0]


def find_real(value: Tensor | nn.Module) -> tuple[str | None, bool]:
    """Return the same name, and whether it names exactly that value."""
    with DisableTorchFunction():
        found = [find_among(read_locals(frame), value) for frame in user_frames()]
    names = list(filter(None, reversed(found)))  # the cell's own name first
    exact = (name for name in names if name[1])
    return next(exact, names[0] if names else (None, False))


def user_frames() -> Iterator[FrameType]:
    """Yield the frames of the user's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN) and not is_library(file):
            yield frame
        frame = frame.f_back


def find_among(
    variables: Mapping[str, object], value: Tensor | nn.Module
) -> tuple[str, bool] | None:
    """Return a value's name among variables, and whether it names that very value."""
    items = [(n, v) for n, v in list(variables.items()) if not n.startswith("_")]
    inside = () if isinstance(value, nn.Module) else tensors_of_modules(items)
    tensors = [*items, *inside]
    exact = next((name for name, other in tensors if other is value), None)
    if exact is not None or isinstance(value, nn.Module):
        return None if exact is None else (exact, True)
    address = find_address(value)
    aliases = (n for n, v in tensors if find_address(v) == address)
    return next(((name, False) for name in aliases), None)


def tensors_of_modules(items: list[tuple[str, object]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the modules among variables, each with its path."""
    for name, module in items:
        # isinstance alone would read ``__class__``, which runs code of lazy objects.
        if issubclass(type(module), nn.Module) and isinstance(module, nn.Module):
            for path, tensor in name_tensors(module):
                yield f"{name}.{path}", tensor


def find_address(value: object) -> int | None:
    """Return the address of a tensor's storage; None if it has none."""
    if not issubclass(type(value), Tensor) or not isinstance(value, Tensor):
        return None
    try:
        return int(address_of_storage(value.untyped_storage()))
    except (RuntimeError, NotImplementedError, ValueError):
        return None
