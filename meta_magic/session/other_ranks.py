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
from meta_magic.replaying.forward_replay import Columns
from meta_magic.trace.program import HEADER
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
    """Knows which storages hold values that rest on other processes."""

    def __init__(self, world: World, note: TakeNote) -> None:
        self._rank = world.rank
        self._note = note
        self._sender_by_storage: dict[int, str] = {}
        self._senders: list[str | None] = []  # of each signature
        self._at = 0  # offset of the first row that was not followed

    def note(self, columns: Columns, storages: Iterable[int]) -> None:
        """Note that values that were read rest on other processes, if they do."""
        sender = self._find(columns, storages)
        if sender is not None:
            self._note("assumed", NOTE.format(sender, self._rank))

    def refuse(self, columns: Columns, storages: Iterable[int], what: str) -> None:
        """Raise a ``MissingValueError`` if values rest on other processes."""
        sender = self._find(columns, storages)
        if sender is not None:
            raise MissingValueError(REFUSAL.format(what, sender))

    def forget(self, columns: Columns, storage: int) -> None:
        """Note that a storage now holds what another process really sent."""
        self._follow(columns)
        self._sender_by_storage.pop(storage, None)

    def _find(self, columns: Columns, storages: Iterable[int]) -> str | None:
        """Return the collective that storages rest on; None if on none."""
        self._follow(columns)
        found = (self._sender_by_storage.get(storage) for storage in storages)
        return next(filter(None, found), None)

    def _follow(self, columns: Columns) -> None:
        """Follow the calls that were recorded since the last time."""
        held, senders, words = self._sender_by_storage, self._senders, columns.words
        senders += map(find_received, columns.signatures[len(senders) :])
        while self._at < len(words):
            signature = columns.signatures[words[self._at]]
            first, n_read = self._at + HEADER, len(signature.inputs)
            end = first + n_read + len(signature.outputs)
            sender = senders[words[self._at]]
            self._at = end
            if sender is None and not held:
                continue
            found = [columns.storage_by_tensor[word] for word in words[first:end]]
            sender = sender or next(
                (held[s] for s in found[:n_read] if s in held), None
            )
            if sender is not None:
                changed = [*found[n_read:], *(found[i] for i in signature.writes)]
                held.update(dict.fromkeys(changed, sender))


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
