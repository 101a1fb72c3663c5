"""Signature, phase and module of each call of a program, as columns of integers."""

from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from meta_magic.trace.program import HEADER, MODULE_HEADER, TIED, Program
from meta_magic.trace.signature import Phase, Signature

__all__ = ["PHASES", "CallColumns", "Integers", "build_call_columns"]

Integers: TypeAlias = npt.NDArray[np.int64]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallColumns:
    """One integer for each call of a program, in the order in which they ran.

    Attributes:
        signatures: Index into ``Program.signatures``.
        phases: Index into ``PHASES``.
        modules: Index into ``Program.modules``, or -1; as ``OpCall.module`` has it.
    """

    signatures: Integers
    phases: Integers
    modules: Integers


def build_call_columns(program: Program) -> CallColumns:
    """Return the columns of all calls that returned."""
    words = as_integers(program.words)
    offsets = np.asarray(program.offsets, np.int64)[:-1]
    phases = [PHASES.index(place.phase) for place in program.places]
    signatures = words[offsets]
    return CallColumns(
        signatures=signatures,
        phases=np.array([*phases, NONE], np.int64)[words[offsets + 1] - 1],
        modules=find_modules(program, words, offsets, signatures),
    )


def as_integers(words: bytes | memoryview) -> Integers:
    """Return the 32-bit words of a program as integers."""
    return np.frombuffer(words, np.uint32).astype(np.int64)


def find_modules(
    program: Program, words: Integers, offsets: Integers, signatures: Integers
) -> Integers:
    """Return the module that each call belongs to.

    That of the module call in which it ran, a backward call that of its forward call;
    outside of calls, the module that holds what is made or written.
    """
    module_words, last = words[offsets + 2], words[offsets + 3]
    is_backward = (module_words == 0) & (last >= TIED)
    module_words[is_backward] = module_words[last[is_backward] - TIED]
    is_call = (module_words > 0) & (module_words % 2 == 0)
    modules = np.where(module_words % 2 == 1, module_words // 2, NONE)
    of_call = as_integers(program.module_rows)[::MODULE_HEADER]
    modules[is_call] = of_call[module_words[is_call] // 2 - 1]
    outside = np.flatnonzero(~is_call)
    if program.owner_by_storage and len(outside):
        owners = find_owners(program, words, offsets[outside], signatures[outside])
        modules[outside] = np.where(owners == NONE, modules[outside], owners)
    return modules


def find_owners(
    program: Program, words: Integers, offsets: Integers, signatures: Integers
) -> Integers:
    """Return the module that holds the first of what each call makes or writes."""
    storages = as_integers(program.storage_by_tensor)
    owner_by_storage = np.full(storages.max(initial=0) + 1, NONE)
    for storage, owner in program.owner_by_storage:
        owner_by_storage[storage] = owner
    owners = np.full(len(offsets), NONE)
    order = np.argsort(signatures, kind="stable")
    numbers, starts = np.unique(signatures[order], return_index=True)
    for number, calls in zip(numbers, np.split(order, starts[1:]), strict=True):
        columns = written_columns(program.signatures[number])
        if not len(columns):
            continue
        tensors = words[offsets[calls][:, None] + columns]
        found = owner_by_storage[storages[tensors]]
        first = (found != NONE).argmax(axis=1)
        owners[calls] = found[np.arange(len(calls)), first]
    return owners


def written_columns(signature: Signature) -> Integers:
    """Return where in a row the tensors stand that a call makes, then it writes."""
    n_inputs = len(signature.inputs)
    made = range(n_inputs, n_inputs + len(signature.outputs))
    return HEADER + np.array([*made, *signature.writes], np.int64)
