"""Made-up addresses for storages on meta, where torch answers 0 for all of them.

Code compares addresses to find tensors that share memory: without this file
``len({p.data_ptr() for p in model.parameters()})`` is 1 in a cell, and safetensors
refuses to save a model, because it takes all of its tensors for one.
"""

import threading
from typing import Final

from torch import UntypedStorage

__all__ = ["FIRST_UNMAPPED", "make_up_address"]

FIRST_UNMAPPED: Final = 2**63
"""No process has memory at this address or above."""

FIRST: Final = 2**64 + FIRST_UNMAPPED
"""The first address given. It takes more than 64 bits, so that what would read memory
there (``from_address`` of ctypes, numpy, a C extension) raises an error instead of
ending the process; code that keeps the lower 64 bits alone has no valid address."""

ALIGNMENT: Final = 64
ATTRIBUTE: Final = "meta_magic_address"
"""Attribute of a storage that holds its address, and the bytes it had then."""

lock = threading.Lock()
addresses = [FIRST]
"""The next address to be given; none is given twice."""


def make_up_address(storage: UntypedStorage) -> int:
    """Return the address of a storage on meta: the same as long as its size is.

    As on the CPU it is a multiple of 64, 0 for a storage of no bytes, and another one
    after a resize; the bytes of two storages never overlap.
    """
    nbytes = storage.nbytes()
    if not nbytes:
        return 0
    address, nbytes_then = vars(storage).get(ATTRIBUTE, (0, 0))
    if nbytes_then != nbytes:
        with lock:
            address = addresses[0]
            addresses[0] += (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        setattr(storage, ATTRIBUTE, (address, nbytes))
    return int(address)
