"""All signatures met, each interned once; shared by the recordings of a process."""

from typing import Any

from meta_magic.recording.identities.geometries import GeometryTable
from meta_magic.recording.signatures.alike import generalize, is_floating
from meta_magic.recording.signatures.descriptions import describe_signature
from meta_magic.recording.signatures.entries import Entry, Kind, LiveCall, OpTable
from meta_magic.recording.signatures.servable import choose_kind, is_on_real

__all__ = ["SignatureCache"]


class SignatureCache:
    """Everything known of operators and their signatures.

    Attributes:
        geometries: The geometries that keys are made of.
        table_by_op: One table for each operator met.
    """

    def __init__(self, *, is_serving: bool) -> None:
        self.geometries = GeometryTable()
        self.table_by_op: dict[object, OpTable] = {}
        self.is_serving = is_serving

    @property
    def n_entries(self) -> int:
        """Signatures held."""
        return sum(len(t.entries) for t in self.table_by_op.values())

    def clear(self) -> None:
        """Forget all signatures."""
        for table in self.table_by_op.values():
            table.entries.clear()
            table.alike.clear()

    def open(self, func: Any) -> OpTable:
        """Return the table of an operator met for the first time."""
        table = self.table_by_op[func] = OpTable(func)
        return table

    def intern(
        self,
        table: OpTable,
        entries: dict[Any, Entry],
        key: object,
        call: LiveCall,
    ) -> Entry:
        """Return the entry of a call that ran; add it when it is the first such."""
        outputs = tuple([seen[2] for _, seen in call.outputs])
        entry = entries.get(key)
        if entry is not None and entry.outputs != outputs:
            # The key does not decide the result (storage sizes, data): one entry each.
            entries, key, entry = entry.variants, outputs, entry.variants.get(outputs)
        if entry is None:
            kind, rebuild = Kind.RUN, None
            if self.is_serving and table.can_serve(call):
                kind, rebuild = choose_kind(table, call)
            signature = describe_signature(table, call)
            entry = entries[key] = Entry(signature, outputs, int(kind), rebuild)
            entry.is_random = table.draws(call.args, call.kwargs)
            if entry.is_random:
                entry.drawn_on = signature.accelerator
            elif self.is_serving and not entry.allowed:
                entry.is_on_real = is_on_real(table, call)
            if kind and table.is_elementwise and is_floating(signature):
                table.alike.setdefault(generalize(key), entry)
        return entry
