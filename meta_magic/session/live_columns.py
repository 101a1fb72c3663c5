"""What was recorded so far, as it grows: for a loop that reads a value in each step.

A snapshot takes longer the more was recorded.
"""

from typing import TYPE_CHECKING

from meta_magic.replaying.row_columns import Columns
from meta_magic.session.program_builder import Written

if TYPE_CHECKING:
    from meta_magic.trace.signature import Signature

__all__ = ["LiveColumns"]


class LiveColumns:
    """The columns of the running recording.

    Args:
        written: What writes them.
    """

    def __init__(self, written: Written) -> None:
        self._written = written
        self._signatures: list[Signature] = []

    def read(self) -> Columns:
        """Return what is recorded up to now."""
        write, known = self._written, self._signatures
        write.rows.flush()
        known += [entry.signature for entry in write.rows.entries[len(known) :]]
        return Columns(
            words=write.rows.words.view(),
            storage_by_tensor=write.registry.storage_by_tensor,
            signatures=known,
            deaths=write.registry.deaths,
            randomness=write.draws.build_randomness,
        )

    def is_changed(self) -> bool:
        """Whether a replay would not do just what was recorded on any machine."""
        return bool(self._written.flags.changes or self._written.findings.assumptions)
