"""Find the tensors that an object holds, and group them by the storage they share.

A module is one kind of object: ``find_tensors`` takes a list, a scheduler, an optimizer
or a tensor as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.parameter import is_lazy

from meta_magic.errors import MaterializeError
from meta_magic.materializing.walk import PLAIN, walk
from meta_magic.recording.rows.tree_tensors import own_tensors
from meta_magic.replaying.memory import read_geometry
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import names_not_persistent, walk_modules
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.signature import Geometry

__all__ = [
    "Held",
    "Target",
    "address_of",
    "check_makeable",
    "find_modules",
    "find_roots",
    "find_tensors",
    "group_targets",
]

CPU = torch.device("cpu")
BOOKKEEPING = frozenset(nn.Module().__dict__)
"""Attributes that every module has, and that hold no tensors of its own."""


class Held(NamedTuple):
    """A tensor where an object holds it.

    Attributes:
        name: Name within the object that is materialized, of a module as ``state_dict``
            keys it.
        kind: ``parameter``, ``buffer``, ``attribute``, ``state`` of an optimizer,
            ``gradient``, or ``alias`` of what shares memory with one of these.
        is_persistent: Whether it stands in the ``state_dict``.
        tensor: The tensor.
        owner: Class name of what holds it; "" if that is no class of interest.
        is_cast: Whether ``dtype=`` casts it.
    """

    name: str
    kind: str
    is_persistent: bool
    tensor: Tensor
    owner: str = ""
    is_cast: bool = True


@dataclass(slots=True, eq=False)
class Target:
    """A storage that is to be made real, with all known tensors on it.

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
        geometry = read_geometry(tensor)
        return replace(geometry, dtype=self.dtype or tensor.dtype)


def find_tensors(root: object) -> Iterator[Held]:
    """Yield every tensor of a module and all below it, or of another object.

    Those of modules at every place.
    """
    seen: set[int] = set()
    with DisableTorchFunction():
        for path, found in walk(root):
            name = path.removeprefix(".")
            if isinstance(found, Tensor):
                is_parameter = isinstance(found, nn.Parameter)
                kind = "parameter" if is_parameter else "attribute"
                yield Held(name or "tensor", kind, False, found)  # noqa: FBT003
            else:
                yield from find_in_module(found, name, seen)


def find_roots(root: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that an object is or holds, and none below them, by name."""
    for path, found in walk(root):
        if isinstance(found, nn.Module):
            yield path.removeprefix("."), found


def find_modules(root: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module of an object and all below it, at every place, by name."""
    for name, top in find_roots(root):
        yield from ((join(name, fqn), module) for fqn, module in walk_modules(top))


def join(prefix: str, name: str) -> str:
    """Return the name of something below what has a name, which may be ""."""
    return f"{prefix}.{name}" if prefix and name else prefix + name


def find_in_module(root: nn.Module, path: str, seen: set[int]) -> Iterator[Held]:
    """Yield every tensor of a module and all below it, at every place.

    Args:
        root: The module.
        path: Its name.
        seen: The ``id`` of the objects that were looked into, which takes those here.
    """
    registered: set[int] = set()
    for fqn, owner in walk_modules(root):
        if isinstance(owner, torch.jit.ScriptModule):
            continue  # holds its tensors where Python does not see them
        for name, kind, tensor in own_and_nested(owner, seen):
            if kind != "attribute":
                registered.add(id(tensor))
            elif id(tensor) in registered:
                continue  # a second way to it, such as an RNN's list of weights
            is_persistent = kind == "parameter" or (
                kind == "buffer" and name not in names_not_persistent(owner)
            )
            of = type(owner).__name__
            yield Held(join(path, join(fqn, name)), kind, is_persistent, tensor, of)


def own_and_nested(
    module: nn.Module, seen: set[int]
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the tensors of a module itself, also those in what its attributes hold.

    Other modules that an attribute leads to are not its own.
    """
    yield from own_tensors(module)
    seen.add(id(module.__dict__))
    for name, value in list(module.__dict__.items()):
        kind = type(value)
        if (
            kind not in PLAIN
            and name not in BOOKKEEPING
            and not issubclass(kind, Tensor)
        ):
            for path, found in walk(value, name, seen):
                if isinstance(found, Tensor):
                    yield path, "attribute", found


def group_targets(held: Sequence[Held], dtype: torch.dtype | None) -> list[Target]:
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
        is_cast = any(place.is_cast for place in target.held)
        target.dtype = choose_dtype(target, dtype if is_cast else None)
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
