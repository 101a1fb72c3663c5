"""Real sparse tensors that meet meta tensors: each is a constant, as dense ones are.

Without this ``adjacency @ torch.randn(3, 4)`` would end in torch's list of kernels.
"""

import weakref
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, UntypedStorage, nn

from meta_magic.recording.identities.device_plan import META
from meta_magic.recording.identities.live_versions import plan_positions, read_version
from meta_magic.recording.identities.storages import sum_small
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.lifted.liftable import wants_gradient
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.signatures.arguments import Given, Inputs
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.tensor_internals import (
    SPARSE,
    address_of_storage,
    build_sparse,
    has_coalesced,
    parts_of,
    plan_part,
)

__all__ = ["SparseConstants", "is_real_sparse"]


class Known(NamedTuple):
    """What stands for a real sparse tensor.

    Attributes:
        planned: The tensor on meta.
        storages: Those of the positions and values of the real one.
        state: What changes when these are written.
    """

    planned: Tensor
    storages: "tuple[weakref.ref[UntypedStorage], ...]"
    state: tuple[object, ...]


class SparseConstants:
    """Makes constants of real sparse tensors.

    Args:
        registry: Numbers of tensors.
        constants: Keeps what the real ones hold.
    """

    def __init__(self, registry: TensorRegistry, constants: Constants) -> None:
        self._registry = registry
        self._constants = constants
        self._known: dict[tuple[object, ...], Known] = {}

    def are_due(self, given: Given, reals: Inputs, *, is_mixed: bool) -> bool:
        """Whether real sparse tensors among the arguments of an operator are lifted.

        Also alone: where they go to meta, and in a backward pass, which would make a
        real one anew each time.

        Args:
            given: The arguments.
            reals: Those of its tensors that are real.
            is_mixed: Whether others are on meta.
        """
        sparse = [tensor for tensor, _ in reals if is_real_sparse(tensor)]
        if not sparse or any(map(wants_gradient, sparse)):
            return False
        is_moved = given.kwargs.get("device") == META
        is_backward = current_autograd_node() is not None
        are_known = is_backward and any(map(self._find, sparse))
        return is_mixed or is_moved or are_known

    def lift(self, real: Tensor, count: Callable[..., object]) -> Tensor:
        """Return the sparse tensor on meta that has the elements of a real one.

        Args:
            real: The real one.
            count: Notes one that is met for the first time.
        """
        known = self._find(real)
        if known is None:
            count(real, is_named=True)
            known = self._make(real)
            self._known[find_key(real)] = known
        return known.planned.detach()

    def _find(self, real: Tensor) -> Known | None:
        known = self._known.get(find_key(real))
        if known is None or known.state != find_state(real):
            return None
        parts = parts_of(real)
        is_same = all(
            ref() is part.untyped_storage()
            for ref, part in zip(known.storages, parts, strict=True)
        )
        return known if is_same else None

    def _make(self, real: Tensor) -> Known:
        self._known = {
            key: known
            for key, known in self._known.items()
            if all(ref() is not None for ref in known.storages)
        }
        parts, copy = parts_of(real), real.detach().clone()
        *positions, values = parts_of(copy)
        planned = build_sparse(
            real,
            [*map(plan_positions, positions), plan_part(values)],
            is_coalesced=has_coalesced(real),
        )
        self._registry.note_deaths()
        ref = self._registry.storage_of(planned)
        if ref is not None:
            self._constants.keep_sparse(ref, copy)
        storages = tuple(weakref.ref(part.untyped_storage()) for part in parts)
        return Known(planned, storages, find_state(real))

    def clear(self) -> None:
        """Let go of what stands for real tensors."""
        self._known.clear()


def is_real_sparse(tensor: Tensor) -> bool:
    """Whether a tensor is a real sparse one that could be a constant."""
    is_real = tensor.layout in SPARSE and not tensor.is_meta
    return is_real and type(tensor) in (Tensor, nn.Parameter)


def find_key(real: Tensor) -> tuple[object, ...]:
    """Return what tells a real sparse tensor from others that live."""
    addresses = [address_of_storage(part.untyped_storage()) for part in parts_of(real)]
    shapes = [part.shape for part in parts_of(real)]
    return (*addresses, *shapes, real.shape, real.layout, has_coalesced(real))


def find_state(real: Tensor) -> tuple[object, ...]:
    """Return what changes when a real sparse tensor is written."""
    sums = [sum_small(part.untyped_storage()) for part in parts_of(real)]
    return read_version(real), *sums
