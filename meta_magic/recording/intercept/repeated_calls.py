"""Record indexing by numbers, arithmetic, and reads of a number as earlier calls did.

``N[i, j] += 1`` is three functions and six operators, of which each takes 10 us and
more through torch: too long for a loop of 200,000 turns. Here the first two calls with
some geometries and numbers go through torch. The rows of the second are kept as a
:class:`Pattern`; those of later calls are written at once. Read
:meth:`RepeatedCalls.run` first.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from types import FrameType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.intercept.factories import NUMBER_READERS
from meta_magic.recording.rows.row_writer import N_SHARED, Pattern
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.cache import Key, default_dtype
from meta_magic.recording.signatures.entries import Args, Kind, plain_float
from meta_magic.torch_private.dispatcher import read_scalar
from meta_magic.torch_private.modes import (
    BelowAutograd,
    DisableTorchDispatch,
    functorch_interpreter,
    is_real_below,
    n_function_modes,
)
from meta_magic.torch_private.tensor_internals import current_autograd_node
from meta_magic.trace.program import HEADER

GET: Final[Any] = Tensor.__getitem__
SET: Final[Any] = Tensor.__setitem__
READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Tensor.item: lambda number: number,
    **NUMBER_READERS,
}
PURE: Final = (
    *("add", "sub", "mul", "div", "neg", "abs", "square", "sqrt", "exp", "log"),
    *("sin", "cos", "tanh", "sigmoid", "relu", "pow", "gt", "lt", "ge", "le", "eq"),
)
REPEATED: Final[frozenset[Any]] = frozenset(
    (GET, SET, Tensor.__rsub__, Tensor.__eq__, *READERS)
).union(
    (getattr(owner, name) for owner in (torch, Tensor) for name in PURE),
    (getattr(Tensor, f"{name}_") for name in ("add", "sub", "mul", "div")),
)
"""Functions whose operators follow from geometries, numbers and the default dtype."""

PLAIN: Final = frozenset({Tensor, Parameter})

Missed: TypeAlias = tuple[Key, list[int]]
"""What decides the rows of a call, and the numbers of its tensors."""

as_strided = torch.as_strided


class RepeatedCalls:
    """The patterns of one recording.

    Args:
        find_number: Returns the number in a tensor, if it is known; else None.
    """

    def __init__(
        self, write: Writers, find_number: Callable[[Tensor, Seen], Any]
    ) -> None:
        self._registry, self._rows = write.registry, write.rows
        self._find_number = find_number
        self._patterns: dict[Key, Pattern | None] = {}
        self._seen_once: set[int] = set()

    def run(
        self, func: Any, args: Args, caller: FrameType
    ) -> tuple[Any, Missed | None]:
        """Write the rows of a call, and return what it returns.

        If they are not known, return ``NotImplemented``, and what :meth:`learn` takes;
        ``None`` in its place if they cannot be.
        """
        numbers: list[int] = []
        key = self._build_key(func, args, numbers)
        if (
            key is None
            or n_function_modes()
            or not is_real_below(n_modes=1)
            or current_autograd_node() is not None
        ):
            return NotImplemented, None
        pattern = self._patterns.get(key)
        rows, registry = self._rows, self._registry
        header = None if pattern is None else rows.find_header(func, caller)
        if pattern is None or header is None:
            return NotImplemented, (key, numbers)
        first, made, seen = args[0], pattern.made, registry.seen_by_id
        returned: Any = None if func is SET else first
        if pattern.reads:
            with BelowAutograd(), DisableTorchDispatch():
                returned = self._find_number(first, seen[id(first)])
            if returned is None:
                return NotImplemented, None
            returned = READERS[func](returned)
        elif made is None:
            increment_version(first)
        else:
            with DisableTorchDispatch():
                returned = (
                    made.make()
                    if pattern.is_fresh
                    else as_strided(first, *made.as_strided)
                )
        if made is not None and pattern.is_fresh:
            numbers.append(registry.add_fresh(returned, made))
        elif pattern.n_views:
            storages = registry.storage_by_tensor
            n_before = len(storages)
            storages.extend([storages[numbers[0]]] * pattern.n_views)
            numbers += range(n_before, n_before + pattern.n_views)
            if made is not None:
                seen[id(returned)] = (numbers[-1], seen[id(first)][1], made)
        rows.append_pattern(pattern, header, numbers)
        return returned, None

    def _build_key(self, func: Any, args: Args, numbers: list[int]) -> Key | None:
        """Return what decides the rows of a call, and append the numbers of tensors.

        None if the first argument is no tensor, or an argument is another than a tensor
        through which no gradient goes, or numbers.
        """
        registry, first = self._registry, args[0]
        is_wrapped = functorch_interpreter() is not None  # by a transform: no number
        if type(first) not in PLAIN or is_wrapped or first.is_inference():
            return None
        if registry.freed:
            registry.note_deaths()
        storage, parts = None, [func, default_dtype()]
        is_view = func is GET
        may_require = func in READERS or not (is_view or torch.is_grad_enabled())
        for value in args:
            kind = type(value)
            if kind in PLAIN:
                if not value.is_meta or (value.requires_grad and not may_require):
                    return None
                number, ref, geometry = registry.read(value)
                if storage is None:
                    storage = ref
                    parts.append(geometry)
                else:
                    is_first = numbers[0] == number
                    parts += (geometry, ref is storage, is_first)
                numbers.append(number)
            elif kind is int or (kind is tuple and {int}.issuperset(map(type, value))):
                parts.append(value)
            elif kind is float:
                parts.append(plain_float(value))
            else:
                return None
        return tuple(parts)

    def learn(self, missed: Missed, call: Callable[[], Any]) -> Any:
        """Make a call, and learn its pattern if there was an equal one before."""
        key, numbers = missed
        rows, storages = self._rows, self._registry.storage_by_tensor
        if key in self._patterns:
            return call()
        if (hashed := hash(key)) not in self._seen_once:
            self._seen_once.add(hashed)  # ``out[i] = 1`` has a new one each time
            return call()
        start, n_before = len(rows.words) + len(rows.waiting), len(storages)
        returned = call()
        rows.flush()
        written = rows.words.view()[start:].tolist()
        self._patterns[key] = self._learn(numbers, n_before, written, returned)
        return returned

    def _learn(
        self, numbers: Sequence[int], n_before: int, words: list[int], returned: object
    ) -> Pattern | None:
        """Return the pattern of the rows just written; None if they have none."""
        registry, entries = self._registry, self._rows.entries
        storages = registry.storage_by_tensor
        new = range(n_before, len(storages))
        index_by_number = {n: i for i, n in enumerate((*numbers, *new), N_SHARED)}
        kinds, signatures, indices = set[int](), list[int](), list[int]()
        n_fields = N_SHARED + len(numbers) + len(new)  # a tensor may come twice
        while words:
            entry = entries[words[0]]
            end = HEADER + len(entry.signature.inputs) + len(entry.signature.outputs)
            indices += (n_fields + len(signatures), 0, 1, 3 if signatures else 2)
            indices += (index_by_number.get(n, -1) for n in words[HEADER:end])
            signatures.append(words[0])
            kinds.add(entry.kind)
            is_read = entry.signature.op == str(read_scalar) and not entry.is_on_real
            is_view = entry.kind == Kind.VIEW and entry.rebuild is None
            is_other = entry.kind == Kind.VIEW and not is_view
            if entry.allowed or is_other or entry.kind not in KINDS[is_read]:
                return None
            words = words[end:]
        of_first = storages[numbers[0]]
        is_fresh = Kind.PURE in kinds
        are_views = all(storages[n] == of_first for n in new)
        if not signatures or -1 in indices:
            return None
        if len(signatures) > 1 if is_fresh or Kind.RUN in kinds else not are_views:
            return None
        seen = registry.seen_by_id.get(id(returned)) if new else None
        return Pattern(
            n_views=0 if is_fresh else len(new),
            signatures=tuple(signatures),
            arrange=itemgetter(*indices),
            made=seen[2] if seen and isinstance(returned, Tensor) else None,
            is_fresh=is_fresh,
            reads=Kind.RUN in kinds,
        )


KINDS: Final = (
    frozenset({Kind.VIEW, Kind.IN_PLACE, Kind.PURE}),
    frozenset({Kind.RUN}),
)
"""The kinds of operators of a pattern: of most, and of those that read a number."""
