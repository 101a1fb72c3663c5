"""Record indexing by numbers, and in-place arithmetic, as an earlier call did.

``N[i, j] += 1`` is three functions and six operators, of which each takes 10 us and
more through torch: too long for a loop of 200,000 turns. Here the first two calls with
some geometries and numbers go through torch. The rows of the second are kept as a
:class:`Pattern`; those of later calls are written at once. Read
:meth:`RepeatedCalls.run` first.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from meta_magic.recording.rows.row_writer import N_SHARED, Pattern
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Kind, plain_float
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    is_real_below,
    n_function_modes,
)
from meta_magic.trace.program import HEADER

SET: Final[Any] = Tensor.__setitem__
REPEATED: Final[frozenset[Any]] = frozenset(
    {Tensor.__getitem__, SET, Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_}
)
"""Functions whose operators follow from geometries and numbers. All but the first write
their first argument."""

as_strided = torch.as_strided


class RepeatedCalls:
    """The patterns of one recording."""

    def __init__(self, write: Writers) -> None:
        self._registry, self._rows = write.registry, write.rows
        self._patterns: dict[tuple[object, ...], Pattern] = {}
        self._seen_once: set[int] = set()

    def run(self, func: Any, args: Args, call: Callable[..., Any]) -> Any:
        """Write the rows of a call, or make it by ``call``; return what it returns."""
        numbers: list[int] = []
        key = self._build_key(func, args, numbers)
        if (
            key is None
            or n_function_modes()
            or not is_real_below(n_modes=1)
            or current_autograd_node() is not None
            or args[0].is_inference()
        ):
            return call(func, args)
        storages, rows = self._registry.storage_by_tensor, self._rows
        n_before, pattern = len(storages), self._patterns.get(key)
        if pattern is None:
            if (hashed := hash(key)) not in self._seen_once:
                self._seen_once.add(hashed)  # ``out[i] = 1`` has a new one each time
                return call(func, args)
            start, n_written = len(rows.waiting), len(rows.words)
            returned = call(func, args)
            if len(rows.words) == n_written:  # its rows are all waiting
                pattern = self._learn(numbers, n_before, rows.waiting[start:], returned)
            if pattern is not None:
                self._patterns[key] = pattern
            return returned
        if pattern.n_new:
            storages.extend([storages[numbers[0]]] * pattern.n_new)
            numbers += range(n_before, len(storages))
        rows.append_pattern(pattern, numbers)
        first = args[0]
        if pattern.view is None:
            increment_version(first)
            return None if func is SET else first
        with DisableTorchDispatch():
            view = as_strided(first, *pattern.view.as_strided)
        seen = self._registry.seen_by_id
        seen[id(view)] = (numbers[-1], seen[id(first)][1], pattern.view)
        return view

    def _build_key(
        self, func: Any, args: Args, numbers: list[int]
    ) -> tuple[object, ...] | None:
        """Return what decides the rows of a call, and append the numbers of tensors.

        None if an argument is another than a tensor without gradient, or numbers.
        """
        registry, parts, storage = self._registry, [func], None
        if registry.freed:
            registry.note_deaths()
        for value in args:
            kind = type(value)
            if kind is Tensor and value.is_meta and not value.requires_grad:
                seen = registry.read(value)
                storage = storage or seen[1]
                parts += (
                    seen[2],
                    seen[1] is storage,
                    bool(numbers) and numbers[0] == seen[0],
                )
                numbers.append(seen[0])
            elif kind is int or (kind is tuple and {int}.issuperset(map(type, value))):
                parts.append(value)
            elif kind is float:
                parts.append(plain_float(value))
            else:
                return None
        return tuple(parts) if storage is not None else None

    def _learn(
        self, numbers: Sequence[int], n_before: int, words: list[int], returned: object
    ) -> Pattern | None:
        """Return the pattern of the rows just written; None if they have none."""
        registry, entries = self._registry, self._rows.entries
        storages = registry.storage_by_tensor
        new = range(n_before, len(storages))
        of_first = storages[numbers[0]]
        index_by_number = {n: i for i, n in enumerate((*numbers, *new), N_SHARED)}
        signatures, indices = list[int](), list[int]()
        n_fields = N_SHARED + len(numbers) + len(new)  # a tensor may come twice
        while words:
            entry = entries[words[0]]
            end = HEADER + len(entry.signature.inputs) + len(entry.signature.outputs)
            indices += (n_fields + len(signatures), 0, 1, 3 if signatures else 2)
            indices += (index_by_number.get(n, -1) for n in words[HEADER:end])
            signatures.append(words[0])
            is_view = entry.kind == Kind.VIEW and entry.rebuild is None
            if entry.allowed or not (is_view or entry.kind == Kind.IN_PLACE):
                return None
            words = words[end:]
        is_known = signatures and -1 not in indices
        if not is_known or any(storages[n] != of_first for n in new):
            return None
        _, _, view = registry.seen_by_id.get(id(returned), (0, None, None))
        is_view = isinstance(returned, Tensor) and bool(new)
        arrange = itemgetter(*indices)
        return Pattern(len(new), tuple(signatures), arrange, view if is_view else None)
