"""Answer a call that was never met by what is known of one that differs in a number.

An optimizer that corrects its bias divides by another number in each step. Where an
operator goes from element to element, no number decides the metadata of its result, nor
whether it is refused: its calls are alike but for it, and need their kernel once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.descriptions import Describer
from meta_magic.recording.signatures.entries import Entry, OpTable
from meta_magic.trace.signature import Signature

__all__ = ["derive", "generalize", "is_floating", "sharing_of"]

NUMBER_LIMIT: Final = torch.finfo(torch.float16).max
"""Beyond it not all floating-point dtypes hold a number, and some operators refuse."""


def sharing_of(numbers: Sequence[int], storages: Sequence[int]) -> tuple[object, ...]:
    """Return which tensors are the same or share a storage; () if none do.

    Args:
        numbers: Those of the tensors.
        storages: Those of their storages.
    """
    if len(set(storages)) == len(storages):
        return ()
    return tuple(map(numbers.index, numbers)), tuple(map(storages.index, storages))


def generalize(key: object) -> object:
    """Return a key with the sign alone of each ordinary float."""
    if type(key) is not tuple:
        return key
    if len(key) == 2 and key[0] is float and type(key[1]) is float:  # noqa: PLR2004
        value = key[1]
        return (float, value > 0) if abs(value) <= NUMBER_LIMIT else key
    return tuple(map(generalize, key))


def is_floating(signature: Signature) -> bool:
    """Whether all that a call is given takes any number that is not too large."""
    dtypes = [geometry.dtype for geometry in signature.inputs]
    return all(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


def derive(known: Entry, table: OpTable, args: Args, kwargs: Kwargs) -> Entry:
    """Return the entry of a call that differs from a known one in numbers alone."""
    arguments = Describer().describe_arguments(table.arguments, args, kwargs)
    signature = replace(known.signature, arguments=arguments)
    return Entry(signature, known.outputs, known.kind, known.rebuild)
