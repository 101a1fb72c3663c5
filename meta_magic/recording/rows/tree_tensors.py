"""Describe the tensors that the modules of a tree hold: live tensors to records.

All tensors of a tree are described at once: one by one they took a third of the time at
the end of a recording.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from types import FunctionType, NoneType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from meta_magic.recording.identities.origins import list_versions
from meta_magic.recording.identities.tensors import LiveGeometry, TensorRegistry
from meta_magic.torch_private.distributed import (
    describe_placements,
    find_shards,
    list_mesh_groups,
    local_of,
    locals_of,
)
from meta_magic.torch_private.module_internals import (
    FLAT_PARAMETER,
    names_not_persistent,
    parts_of,
    pick_own,
)
from meta_magic.trace.modules import ModuleTensor
from meta_magic.trace.world import read_group

NOT_TENSORS: Final = frozenset(
    {bool, int, float, str, dict, OrderedDict, set, NoneType}
    | {list, tuple, torch.Size, torch.dtype, torch.device, FunctionType}
)
"""Frequent types of attributes: to ask each whether it is a tensor is slow."""

DENSE: Final = frozenset({Tensor, nn.Parameter})
"""Types of tensors that are not lazy, and run no code of their own."""

Row: TypeAlias = tuple[int, str, str, bool, Tensor]
"""Index of a module, then of a tensor that it holds itself: its name, its kind, whether
it is in the ``state_dict``, and the tensor."""

Described: TypeAlias = tuple[tuple[ModuleTensor, ...], tuple[int, ...]]
"""Records of the tensors of a module, and the storage of each; -1 while it is lazy."""

requires_grad: Final = attrgetter("requires_grad")

NO_SHARDS: Final[Mapping[tuple[int, str], Tensor]] = {}

NOTHING: Final[Described] = ((), ())


class HeldTensors:
    """The tensors of a module tree, once for each module that holds them."""

    def __init__(
        self, registry: TensorRegistry, modules: Iterable[tuple[int, nn.Module]]
    ) -> None:
        held = [*modules]
        rows = list_held(held, find_shards(module for _, module in held))
        self._owners = [row[0] for row in rows]
        self._names = [row[1] for row in rows]
        self._kinds = [row[2] for row in rows]
        self._lasting = [row[3] for row in rows]
        self._tensors = [row[4] for row in rows]
        self._locals = locals_of(self._tensors)
        read, of = registry.read, registry.storage_by_tensor
        seen = [
            None if type(tensor) not in DENSE and is_lazy(tensor) else read(tensor)
            for tensor in self._locals
        ]
        self._storages = [-1 if one is None else of[one[0]] for one in seen]
        self._geometries = [None if one is None else one[2] for one in seen]

    def describe(self, fqns: Sequence[str]) -> list[Described]:
        """Describe the tensors of each module, given its name within the root."""
        if not self._tensors:
            return [NOTHING] * len(fqns)
        pairs = [*zip(self._tensors, self._geometries, strict=True)]
        alike = [
            geometry if geometry is not None and tensor is local else id(tensor)
            for (tensor, geometry), local in zip(pairs, self._locals, strict=True)
        ]
        grads, ties = map(requires_grad, self._tensors), self._find_ties(fqns)
        columns = self._names, self._kinds, self._lasting, alike, grads, ties
        keys = [*zip(*columns, strict=True)]
        # Most layers of a model are alike: a record for each kind of tensor.
        of_key = dict(zip(keys, pairs, strict=True))
        made = {key: make_record(key, *one) for key, one in of_key.items()}
        records, storages = map(made.__getitem__, keys), iter(self._storages)
        found, counts = [NOTHING] * len(fqns), Counter(self._owners)
        for owner, n in counts.items():
            found[owner] = tuple(islice(records, n)), tuple(islice(storages, n))
        return found

    def _find_ties(self, fqns: Sequence[str]) -> list[str | None]:
        """Return the first name of the same tensor, None if that is its own."""
        ties: list[str | None] = [None] * len(self._tensors)
        counts = Counter(self._storages)
        if len(counts) == len(ties):
            return ties
        first_by_tensor: dict[object, str] = {}
        for index, storage in enumerate(self._storages):
            if storage != -1 and counts[storage] > 1:
                above = fqns[self._owners[index]]
                fqn = f"{above}.{self._names[index]}" if above else self._names[index]
                tensor = storage, self._geometries[index]
                first = first_by_tensor.setdefault(tensor, fqn)
                ties[index] = None if first == fqn else first
        return ties

    def read_versions(self) -> dict[tuple[int, int], int]:
        """Return how often the tensors were written, by storage and ``id``."""
        found = zip(self._storages, self._tensors, self._locals, strict=True)
        keys = [(s if tensor is own else -1, id(tensor)) for s, tensor, own in found]
        return dict(zip(keys, list_versions(self._tensors), strict=True))

    def find_owners(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the number of the first module that holds a storage."""
        owners: dict[int, int] = {}
        columns = self._storages, self._kinds, self._owners
        for storage, kind, owner in zip(*columns, strict=True):
            if kind != "attribute" and storage != -1:
                owners.setdefault(storage, numbers[owner])
        return owners

    def list_attributes(self) -> list[tuple[int, str, int]]:
        """Return module, name and storage of tensors that are no parameter or buffer.

        None of a model whose flat parameters FSDP splits into views.
        """
        if "attribute" not in self._kinds or FLAT_PARAMETER in self._names:
            return []
        columns = self._owners, self._names, self._storages, self._kinds
        rows = zip(*columns, strict=True)
        return [row[:3] for row in rows if row[3] == "attribute" and row[2] != -1]


def make_record(
    key: tuple[Any, ...], tensor: Tensor, geometry: LiveGeometry | None
) -> ModuleTensor:
    """Return the record of a tensor; one without a geometry is lazy."""
    name, kind, is_persistent, _, grad, tied_to = key
    local = local_of(tensor)
    return ModuleTensor(
        name=name,
        kind=kind,
        is_persistent=is_persistent,
        is_lazy=geometry is None,
        shape=() if geometry is None else tuple(tensor.shape),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=grad,
        tied_to=tied_to,
        place=None if geometry is None else geometry.placement,
        local_shape=None if local is tensor else tuple(local.shape),
        sharding=None if local is tensor else describe_placements(tensor),
        mesh=() if local is tensor else read_mesh(tensor),
    )


def read_mesh(tensor: Tensor) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return ``ModuleTensor.mesh`` of a DTensor; () if its groups are real ones."""
    pairs = [(name, read_group(group)) for name, group in list_mesh_groups(tensor)]
    return tuple((name, group.ranks) for name, group in pairs if group is not None)


def own_tensors(module: nn.Module) -> list[tuple[str, str, Tensor]]:
    """Return name, kind and tensor of each tensor that a module holds itself."""
    rows = list_held([(0, module)])
    return [(name, kind, tensor) for _, name, kind, _, tensor in rows]


def list_held(
    modules: Iterable[tuple[int, nn.Module]],
    shards: Mapping[tuple[int, str], Tensor] = NO_SHARDS,
) -> list[Row]:
    """Return a row for each tensor that some modules hold themselves.

    ``shards`` are listed in place of parameters, by ``id`` of the module and name.
    """
    rows: list[Row] = []
    add = rows.append
    for index, module in modules:
        parameters, buffers, held = parts_of(module)
        for name, tensor in parameters.items():
            if tensor is not None:
                own = shards.get((id(module), name), tensor) if shards else tensor
                add((index, name, "parameter", True, own))
        for name, tensor in buffers.items():
            if tensor is not None:
                is_lasting = name not in names_not_persistent(module)
                add((index, name, "buffer", is_lasting, tensor))
        for name in pick_own(tuple(held)):
            kind = type(held[name])
            # Not isinstance: a configuration would be asked for its class, slowly.
            if kind not in NOT_TENSORS and issubclass(kind, Tensor):
                add((index, name, "attribute", False, held[name]))
    return rows
