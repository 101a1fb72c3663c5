"""Find the tensors of a module that are on meta, grouped by the storage they share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.parameter import is_lazy

from meta_magic.errors import MaterializeError
from meta_magic.recording.rows.tree_tensors import own_tensors
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import names_not_persistent, walk_modules
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.signature import Geometry

__all__ = [
    "Held",
    "Target",
    "address_of",
    "find_tensors",
    "group_targets",
    "own_and_nested",
]

CPU = torch.device("cpu")
CONTAINERS = (list, tuple, dict)
PLAIN = frozenset({bool, int, float, str, NoneType})
BOOKKEEPING = frozenset(nn.Module().__dict__)
"""Attributes that every module has, and that hold no tensors of its own."""


class Held(NamedTuple):
    """A tensor where a module holds it.

    Attributes:
        name: Name within the module that is materialized, as ``state_dict`` keys it.
        kind: ``parameter``, ``buffer`` or ``attribute``.
        is_persistent: Whether it stands in the ``state_dict``.
        tensor: The tensor.
    """

    name: str
    kind: str
    is_persistent: bool
    tensor: Tensor


@dataclass(slots=True, eq=False)
class Target:
    """A storage that is to be made real, with all tensors of the module on it.

    Attributes:
        storage: The storage; without content where ``is_meta``.
        itemsize: Bytes of an element as its first tensor reads it.
        held: The tensors, each once for every place where it is held.
        tensors: The tensors, each once.
        dtype: What they are to be cast to; None to leave them as they are.
        device: Where it is made real.
    """

    storage: UntypedStorage
    itemsize: int
    held: list[Held] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    dtype: torch.dtype | None = None
    device: torch.device = CPU

    @property
    def name(self) -> str:
        """Name of the first place."""
        return self.held[0].name

    @property
    def is_meta(self) -> bool:
        """Whether it is to be made real, and not written anew."""
        return self.storage.device.type == "meta"

    @property
    def nbytes(self) -> int:
        """Bytes that it will take."""
        nbytes = self.storage.nbytes()
        if self.dtype is None:
            return nbytes
        return nbytes // self.itemsize * self.dtype.itemsize

    def geometry_of(self, tensor: Tensor) -> Geometry:
        """Return the geometry that one of its tensors will have."""
        return Geometry(
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            storage_offset=int(tensor.storage_offset()),
            dtype=self.dtype or tensor.dtype,
            device=tensor.device,
            layout=tensor.layout,
            is_conj=tensor.is_conj(),
            is_neg=tensor.is_neg(),
        )


def find_tensors(module: nn.Module) -> Iterator[Held]:
    """Yield every tensor of a module and all below it, at every place."""
    registered: set[int] = set()
    with DisableTorchFunction():
        for prefix, owner in walk_modules(module):
            for name, kind, tensor in own_and_nested(owner):
                if kind != "attribute":
                    registered.add(id(tensor))
                elif id(tensor) in registered:
                    continue  # a second way to it, such as an RNN's list of weights
                is_persistent = kind == "parameter" or (
                    kind == "buffer" and name not in names_not_persistent(owner)
                )
                yield Held(
                    name=f"{prefix}.{name}" if prefix else name,
                    kind=kind,
                    is_persistent=is_persistent,
                    tensor=tensor,
                )


def own_and_nested(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the tensors of a module itself, also those in lists and dicts."""
    yield from own_tensors(module)
    for name, value in module.__dict__.items():
        kind = type(value)
        if kind in PLAIN or not issubclass(kind, CONTAINERS):
            continue
        if name not in BOOKKEEPING:
            for index, tensor in enumerate(nested_tensors(value, set())):
                yield f"{name}[{index}]", "attribute", tensor


def nested_tensors(value: Any, met: set[int]) -> Iterator[Tensor]:
    """Yield the tensors in a value, looking into containers that were not ``met``."""
    kind = type(value)  # by isinstance, classes of the user's would be asked
    if issubclass(kind, Tensor):
        yield value
    elif issubclass(kind, CONTAINERS) and id(value) not in met:
        met.add(id(value))
        for item in dict.values(value) if issubclass(kind, dict) else value:
            yield from nested_tensors(item, met)


def group_targets(held: list[Held], dtype: torch.dtype | None) -> list[Target]:
    """Return the storages to be made real, in order of first sight.

    Args:
        held: Tensors on meta.
        dtype: What floating-point and complex tensors are cast to, as
            ``Module.to(dtype)`` does; None to leave them.

    Raises:
        MaterializeError: Torch cannot make one of the tensors.
    """
    targets: dict[int, Target] = {}
    for place in held:
        check_makeable(place)
        storage = Tensor.untyped_storage(place.tensor)
        target = targets.setdefault(
            address_of_storage(storage), Target(storage, place.tensor.itemsize)
        )
        target.held.append(place)
        if not any(place.tensor is tensor for tensor in target.tensors):
            target.tensors.append(place.tensor)
    for target in targets.values():
        target.dtype = choose_dtype(target, dtype)
    return list(targets.values())


def address_of(tensor: Tensor) -> int:
    """Return what tells a tensor's storage from others; its ``id`` if it has none."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return id(tensor)
    address: int = address_of_storage(tensor.untyped_storage())
    return address


def check_makeable(place: Held) -> None:
    """Refuse what torch cannot make from a tensor on meta.

    Raises:
        MaterializeError: ``place`` holds such a tensor.
    """
    tensor, why = place.tensor, ""
    if is_lazy(tensor):
        why = "its shape is not known yet: call the module once in the recorded cell"
    elif type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        why = (
            f"it is a {type(tensor).__name__}, of which only its class knows the parts"
        )
    elif tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        why = f"its layout is {layout}, and torch makes none such from meta"
    elif tensor.is_quantized:
        why = f"it is quantized ({tensor.dtype}), and torch makes none such from meta"
    if why:
        raise MaterializeError(
            f"cannot materialize {place.name!r}: {why}. Materialize the other "
            "submodules one by one, or replace it"
        )


def choose_dtype(target: Target, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return what a target is cast to, None if it stays as it is.

    Raises:
        MaterializeError: Its tensors read the same bytes as different dtypes.
    """
    known = {tensor.dtype for tensor in target.tensors}
    first = target.held[0].tensor.dtype
    can_cast = any(d.is_floating_point or d.is_complex for d in known)
    if dtype is None or not can_cast or known == {dtype}:
        return None
    if len(known) > 1:
        raise MaterializeError(
            f"cannot cast {target.name!r} to {dtype}: "
            f"{', '.join(h.name for h in target.held)} read one storage as "
            f"{', '.join(map(str, known))}. Leave out dtype="
        )
    return dtype.to_complex() if first.is_complex and not dtype.is_complex else dtype
