"""Make the key of an operator call, and the plain signature that equal keys share.

The key holds everything that decides the metadata of the result: a call whose key is
known is a cache hit. Read ``build_operator_key`` first: it runs for every operator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import copysign, isnan
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, UntypedStorage
from torch.nn import Parameter

from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.signatures.entries import (
    PLAIN,
    Args,
    Kwargs,
    LiveCall,
    OpTable,
    find_written_statistics,
    plain_float,
)
from meta_magic.torch_private.distributed import describe_group
from meta_magic.torch_private.modes import is_deterministic
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Argument,
    OpaqueArgument,
    Signature,
    TensorArgument,
)

Key: TypeAlias = tuple[object, ...]

default_dtype = torch.get_default_dtype


def build_operator_key(
    read: Callable[[Tensor], Seen], args: Args, kwargs: Kwargs | None, words: list[int]
) -> Key:
    """Return the key of a call; append the numbers of its tensors to its row."""
    parts: list[object] = [default_dtype(), is_deterministic()]
    for value in args:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            seen = read(value)
            parts.append(seen[2])
            words.append(seen[0])
        elif kind is int or value is None:
            parts.append(value)
        elif kind is float:
            parts.append(plain_float(value))
        elif kind is list and value and type(value[0]) is int:
            parts.append(tuple(value))
        else:
            parts.append(encode(read, value, words))
    if kwargs:
        for name, value in kwargs.items():
            parts.append(name)
            parts.append(encode(read, value, words))
    return tuple(parts)


def encode(read: Callable[[Tensor], Seen], value: Any, words: list[int]) -> object:
    """Return the part of a key for any value; append the numbers of its tensors."""
    kind = type(value)
    if kind is float or kind is complex:
        return plain_float(value)
    if kind in PLAIN:
        return (kind, value)
    if kind is list or kind is tuple:
        return tuple([encode(read, item, words) for item in value])
    if isinstance(value, Tensor):
        seen = read(value)
        words.append(seen[0])
        return seen[2]
    return describe_opaque(value)  # not its id(), which another object may get later


def has_opaque(key: Key) -> bool:
    """Whether a key has a part that different objects share, such as generators."""
    for part in key:
        if type(part) is OpaqueArgument or (type(part) is tuple and has_opaque(part)):
            return True
    return False


def describe_opaque(value: object) -> OpaqueArgument:
    """Return the description of a value that is not plain."""
    if isinstance(value, (Generator, UntypedStorage)):
        # torch's text for them is an address, or all bytes of the storage.
        return OpaqueArgument(f"{type(value).__name__} on {value.device}")
    text = describe_group(value)
    return OpaqueArgument(text or f"{type(value).__name__} {str(value)[:200]}")


def describe_signature(table: OpTable, call: LiveCall) -> Signature:
    """Return the plain record that ``call`` shares with all calls of its key."""
    describer = Describer()
    storages = [seen[1] for _, seen in call.inputs]
    arguments = describer.describe_arguments(table.arguments, call.args, call.kwargs)
    written = table.written | find_written_statistics(table.name, arguments)
    return Signature(
        op=table.name,
        arguments=arguments,
        returns=Describer(reads_data=table.reads_data).describe(call.returned),
        inputs=tuple(seen[2].record for _, seen in call.inputs),
        outputs=tuple(seen[2].record for _, seen in call.outputs),
        writes=describer.positions(written),
        views=tuple(
            storages.index(seen[1]) if seen[1] and seen[1] in storages else None
            for _, seen in call.outputs
        ),
    )


class Describer:
    """Turns live arguments into plain ones, and numbers the tensors among them.

    If it reads data, only the types of values are described.
    """

    def __init__(self, *, reads_data: bool = False) -> None:
        self._reads_data = reads_data
        self._n_tensors = 0
        self._span_by_name: dict[str, range] = {}

    def describe_arguments(
        self, names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[tuple[str, Argument], ...]:
        """Return (name, plain value) pairs of a call's arguments."""
        described = []
        positional = (
            (names[i] if i < len(names) else str(i), value)
            for i, value in enumerate(args)
        )
        for name, value in (*positional, *kwargs.items()):
            start = self._n_tensors
            described.append((name, self.describe(value)))
            self._span_by_name[name] = range(start, self._n_tensors)
        return tuple(described)

    def positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the tensor numbers that belong to the arguments ``names``."""
        spans = (self._span_by_name.get(name, range(0)) for name in names)
        return tuple(sorted(number for span in spans for number in span))

    def describe(self, value: object) -> Argument:
        """Return the plain description of ``value``."""
        if isinstance(value, Tensor):
            self._n_tensors += 1
            return TensorArgument(self._n_tensors - 1)
        if isinstance(value, (tuple, list)):
            return tuple(self.describe(item) for item in value)
        if self._reads_data and value is not None:
            return OpaqueArgument(f"a value of type {type(value).__name__}")
        if isinstance(value, float) and isnan(value):
            return NAN if copysign(1, value) > 0 else NEGATIVE_NAN
        return value if type(value) in PLAIN else describe_opaque(value)
