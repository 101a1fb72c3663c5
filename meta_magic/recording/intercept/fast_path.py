"""The fast path: make the result of a cache hit without its kernel.

A kernel on meta takes some 90 us (``torch.add``), a cache hit 8. Read
``FastPath.make_result`` first.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.autograd.graph import increment_version

from meta_magic.recording.as_device.cpu_kernels import enlarge_storage
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.signatures.cache import COUNTED, derive, generalize
from meta_magic.recording.signatures.entries import (
    Args,
    Entry,
    Kind,
    Kwargs,
    OpTable,
    sharing_of,
)
from meta_magic.recording.signatures.operator_keys import Key
from meta_magic.trace.program import HEADER

# Plain integers: the attribute of an enum costs more than the comparison.
RUN, PURE, PURE_MANY, VIEW, VIEW_MANY, IN_PLACE, PURE_WIDE = map(int, Kind)

ALONE: Final = frozenset({PURE, PURE_MANY, VIEW, VIEW_MANY, PURE_WIDE})
"""Kinds of entries that their key alone decides."""

as_strided = torch.as_strided


class FastPath:
    """Makes the results of cache hits."""

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry

    def find(
        self,
        table: OpTable,
        key: Key,
        entry: Entry | None,
        words: Sequence[int],
        args: Args,
        kwargs: Kwargs | None,
    ) -> Entry | None:
        """Return the entry of a call if its key alone does not decide the result.

        For a write in place, or a call that differs only in a number.

        Args:
            entry: The entry at the key; its kind is not in ``ALONE``.
            words: The row of the call, with the tensors that it reads.

        Returns:
            The entry; None if the kernel must run.
        """
        if entry is not None and entry.kind == IN_PLACE:
            if len(words) == HEADER + 1:
                return entry
            # The written tensor must not be read through another one as well.
            storage_by_tensor = self._registry.storage_by_tensor
            storages = {storage_by_tensor[number] for number in words[HEADER:]}
            if len(storages) == len(words) - HEADER:
                return entry
        if not table.has_alike or (entry is not None and entry.is_on_real):
            return None
        return self._find_alike(table, key, words[HEADER:], args, kwargs or {})

    def _find_alike(
        self,
        table: OpTable,
        key: Key,
        numbers: Sequence[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Entry | None:
        """Return the entry of a call by a longer or a more general key, if any.

        The longer key says which written arguments share a storage; the more general
        one leaves numbers out.
        """
        if not table.is_pure:
            storages = [*map(self._registry.storage_by_tensor.__getitem__, numbers)]
            key = (*key, *sharing_of(numbers, storages))
        entry = table.entries.get(key)
        if entry is not None:
            return entry if entry.kind != RUN else None
        known = table.alike.get(generalize(key)) if table.alike else None
        if known is not None:
            entry = table.entries[key] = derive(known, table, args, kwargs)
        return entry

    def make_result(
        self,
        entry: Entry,
        words: list[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Return the result of the kernel, and append the numbers of its tensors."""
        kind, registry = entry.kind, self._registry
        if kind == PURE:
            tensor = entry.outputs[0].make()
            words.append(registry.add_fresh(tensor, entry.outputs[0]))
            return tensor
        if kind == VIEW:
            base, made = args[0], entry.outputs[0]
            make = entry.rebuild
            view = as_strided(base, *made.as_strided) if make is None else make(base)
            words.append(registry.add_view(view, registry.read_again(base), made))
            return view
        if kind == IN_PLACE:
            where = entry.rebuild
            if where is None or where == ():
                return where
            if where is COUNTED:
                increment_version(args[0])
                return None
            written = args[where] if isinstance(where, int) else kwargs[where]
            words.append(registry.read_again(written)[0])
            return written
        return self._make_many(entry, words, args, kwargs)

    def _make_many(
        self, entry: Entry, words: list[int], args: Args, kwargs: Kwargs
    ) -> Any:
        """Make several results, or one result on a larger storage."""
        registry = self._registry
        if entry.kind == PURE_WIDE:
            made = entry.outputs[0]
            tensor = enlarge_storage(made.make(), entry.rebuild)
            words.append(registry.add_output(tensor, made.placement)[0])
            return tensor
        if entry.kind == VIEW_MANY:
            views, base = entry.rebuild(*args, **kwargs), registry.read_again(args[0])
            words += [
                registry.add_view(view, base, made)
                for view, made in zip(views, entry.outputs, strict=True)
            ]
            return views
        is_list, is_there = entry.rebuild
        geometries = iter(entry.outputs)
        many = [next(geometries).make() if there else None for there in is_there]
        tensors = [tensor for tensor in many if tensor is not None]
        words += map(registry.add_fresh, tensors, entry.outputs)
        return many if is_list else tuple(many)
