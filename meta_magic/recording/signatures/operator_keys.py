"""What decides the result of an operator call, as a key."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.descriptions import describe_opaque
from meta_magic.recording.signatures.entries import PLAIN, plain_float
from meta_magic.torch_private.modes import is_deterministic
from meta_magic.trace.signature import OpaqueArgument

__all__ = ["Key", "build_operator_key", "has_opaque"]

Key: TypeAlias = tuple[object, ...]

default_dtype = torch.get_default_dtype


def build_operator_key(
    read: Callable[[Tensor], Seen],
    args: Args,
    kwargs: Kwargs | None,
    words: list[int],
) -> Key:
    """Return all that decides a result; append the words of the tensors read.

    Args:
        read: Returns what is known of a tensor.
        args: Positional arguments of the operator.
        kwargs: Its others.
        words: The row of the call.
    """
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
    """Return what stands for any ``value`` in a key; append its tensors' words."""
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
    return describe_opaque(value)  # never by its id(), which others get again


def has_opaque(key: Key) -> bool:
    """Whether a key holds what it cannot tell from others of its kind: a generator."""
    for part in key:
        if type(part) is OpaqueArgument or (type(part) is tuple and has_opaque(part)):
            return True
    return False
