"""Follow values that rest on what other processes of a planned world send.

After ``dist.all_reduce(metric)`` in a block with ``world=8``, ``metric.item()`` is
computed as if all eight processes held what the recorded one holds. Without a note that
number would pass for the real one, and ``torch.save`` would write it into a checkpoint.
Read :class:`OtherRanks` first.
"""

from collections.abc import Iterable
from typing import Final

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.call_sites import TakeNote
from meta_magic.trace.program import Program
from meta_magic.trace.sent import find_kind
from meta_magic.trace.signature import Signature
from meta_magic.trace.world import World, find_group

NOTE: Final = (
    "the value rests on what other ranks send in {}: each is taken to hold what rank "
    "{} holds"
)
REFUSAL: Final = (
    "{} holds values that rest on what other ranks send in {}, which are not recorded: "
    "a checkpoint of them would be wrong. Run the script under torchrun to write it"
)


class OtherRanks:
    """Knows which storages hold values that rest on other processes.

    Args:
        world: The world.
    """

    def __init__(self, world: World, note: TakeNote) -> None:
        self._rank = world.rank
        self._note = note
        self._sender_by_storage: dict[int, str] = {}
        self._n_followed = 0

    def note(self, program: Program, storages: Iterable[int]) -> None:
        """Note that values that were read rest on other processes, if they do."""
        sender = self._find(program, storages)
        if sender is not None:
            self._note("assumed", NOTE.format(sender, self._rank))

    def refuse(self, program: Program, storages: Iterable[int], what: str) -> None:
        """Raise a ``MissingValueError`` if values rest on other processes."""
        sender = self._find(program, storages)
        if sender is not None:
            raise MissingValueError(REFUSAL.format(what, sender))

    def forget(self, program: Program, storage: int) -> None:
        """Note that a storage now holds what another process really sent."""
        self._follow(program)
        self._sender_by_storage.pop(storage, None)

    def _find(self, program: Program, storages: Iterable[int]) -> str | None:
        """Return the collective that storages rest on; None if on none."""
        self._follow(program)
        found = (self._sender_by_storage.get(storage) for storage in storages)
        return next(filter(None, found), None)

    def _follow(self, program: Program) -> None:
        """Follow the calls that were recorded since the last time."""
        held = self._sender_by_storage
        for _, signature, read, made in program.walk_calls(self._n_followed):
            sender = find_received(signature) or next(
                (held[storage] for storage in read if storage in held), None
            )
            if sender is not None:
                changed = [*made, *(read[i] for i in signature.writes)]
                held.update(dict.fromkeys(changed, sender))
        self._n_followed = program.n_calls


def find_received(signature: Signature) -> str | None:
    """Return the kind of a collective whose result rests on other processes."""
    kind = find_kind(signature.op)
    if kind in (None, "send"):
        return None
    given = dict(signature.arguments)
    group = find_group(given.values())
    if group is None or len(group.ranks) == 1:
        return None
    root = given.get("root_rank", given.get("src"))
    is_mine = kind in ("broadcast", "scatter") and root == group.rank
    is_elsewhere = kind in ("reduce", "gather") and root != group.rank
    return None if is_mine or is_elsewhere else kind
