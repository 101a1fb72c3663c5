"""Which storages lie on meta because the code named it: on a real machine they too.

``with torch.device("meta"): model = build()`` takes no memory, nor does what comes of
it, until ``to_empty`` or a move puts it on a device.
"""

import numpy as np

from meta_magic.cost.program_columns import Columns, Flags, Integers
from meta_magic.trace.program import Program

__all__ = ["find_on_meta"]


def find_on_meta(program: Program, columns: Columns, first: Integers) -> Flags:
    """Return of each storage whether it lies on meta by name.

    None does where the kernels of meta are recorded: there all lies on it.

    Args:
        program: The program.
        columns: Its columns.
        first: Of each storage the tensor by which a call first met it.
    """
    is_there = np.zeros(columns.n_storages, np.bool_)
    if program.facts.on_meta and program.as_device != "meta":
        named = np.asarray(program.facts.on_meta)
        is_there[named[named < columns.n_storages]] = True
        follow(columns, first, is_there)
    return is_there


def follow(columns: Columns, first: Integers, is_there: Flags) -> None:
    """Mark what calls make of what is marked, but for what is put elsewhere by name."""
    storages = columns.storage
    is_new = columns.is_made & (first[storages] == np.arange(len(storages)))
    is_new &= columns.location == 0
    for call in np.unique(columns.call[is_new]):
        tensors = slice(columns.first[call], columns.first[call + 1])
        here, is_made = storages[tensors], columns.is_made[tensors]
        if is_there[here[~is_made]].any():
            is_there[here[is_new[tensors]]] = True
