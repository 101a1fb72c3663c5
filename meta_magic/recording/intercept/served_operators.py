"""Answer operator calls that were seen before, without their kernel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.row_writer import make_tensor
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.entries import Entry, Kind
from meta_magic.recording.signatures.servable import COUNTED
from meta_magic.trace.program import HEADER

__all__ = ["ServedOperators"]

# Plain integers: the attribute of an enum costs more than the comparison.
RUN, PURE, VIEW, IN_PLACE = map(int, (Kind.RUN, Kind.PURE, Kind.VIEW, Kind.IN_PLACE))

as_strided = torch.as_strided


class ServedOperators:
    """Makes what a kernel would return.

    Args:
        registry: Numbers of tensors.
    """

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry

    def can_serve(self, entry: Entry, words: Sequence[int]) -> bool:
        """Whether a call may be answered by its signature alone."""
        kind = entry.kind
        if kind != IN_PLACE:
            return kind != RUN
        # What is written must not be read through another tensor as well.
        storage_by_tensor = self._registry.storage_by_tensor
        storages = {storage_by_tensor[number] for number in words[HEADER:]}
        return len(storages) == len(words) - HEADER

    def serve(
        self,
        entry: Entry,
        words: list[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Return what the kernel would, and append the words of its tensors."""
        kind, registry = entry.kind, self._registry
        if kind == PURE:
            tensor = make_tensor(entry.outputs[0])
            words.append(registry.add_fresh(tensor, entry.outputs[0]))
            return tensor
        if kind == VIEW:
            base, made = args[0], entry.outputs[0]
            view = as_strided(base, *made.as_strided)
            words.append(registry.add_view(view, registry.read(base), made))
            return view
        if kind == IN_PLACE:
            where = entry.rebuild
            if where is None or where == ():
                return where
            if where is COUNTED:
                increment_version(args[0])
                return None
            written = args[where] if isinstance(where, int) else kwargs[where]
            words.append(registry.read(written)[0])
            return written
        is_list, is_there = entry.rebuild
        geometries = iter(entry.outputs)
        many = [make_tensor(next(geometries)) if there else None for there in is_there]
        tensors = [tensor for tensor in many if tensor is not None]
        words += map(registry.add_fresh, tensors, entry.outputs)
        return many if is_list else tuple(many)
