"""How often tensors were written when a recording ended, where no count says it."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from torch import Tensor

from meta_magic.recording.identities.living_tensors import (
    LivingTensors,
    is_uncounted,
    make_counters,
    read_version,
)
from meta_magic.recording.identities.storages import StorageRef
from meta_magic.torch_private.tensor_internals import count_owners
from meta_magic.trace.program import Program

__all__ = ["look_for_versions"]


def look_for_versions(
    program: Program,
    refs: Iterable[StorageRef],
    aliased: AbstractSet[int],
    known: dict[tuple[int, int], int],
) -> dict[int, list[tuple[Tensor, int]]]:
    """Look for the versions that no count of operators says and that are not known.

    Args:
        program: What was recorded.
        refs: The storages that live.
        aliased: Those of which some tensors count their own writes.
        known: The versions that were read, by storage and ``id``; takes those found.

    Returns:
        As :attr:`Origin.counters` has it.
    """
    suspects = aliased | program.count_writes(is_uncounted).keys()
    if not suspects:
        return {}
    n_known = Counter(storage for storage, _ in known)
    living, apart = LivingTensors(), {}
    for ref in refs:
        number, storage = ref.number, ref() if ref.number in suspects else None
        if storage is None:
            continue
        n_wanted = count_owners(ref.address) if number in aliased else 1
        if n_known[number] < n_wanted:
            groups = living.on(ref.address)
            for group in groups:
                known.update({(number, key): v for key, v in group.items()})
            if len(groups) > 1:
                apart[ref.address] = number
    made = make_counters(apart) if apart else {}
    return {
        apart[address]: [(counter, read_version(counter)) for counter in counters]
        for address, counters in made.items()
    }
