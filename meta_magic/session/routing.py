"""How evenly tokens go to experts, followed from call to call of a recording."""

from math import prod
from typing import Final, NamedTuple

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import Geometry, Signature

__all__ = ["Routed", "Routing"]

CHOICES: Final = frozenset({"aten.topk", "aten.argmax", "aten.max", "aten.sort"})
"""What sends each token to experts: the last dimension of what is read has them all."""

SUM: Final = "aten.sum"
COUNTS: Final = frozenset({"aten.bincount", "aten.histc"})
REDUCTIONS: Final = COUNTS | {SUM, "aten.any", "aten.amax", "aten.count"}
"""What is true of an expert if any token is sent to it."""

SCATTERS: Final = frozenset(
    f"aten.{name}{end}" for name in ("scatter", "scatter_add") for end in ("", "_")
)
LOOKUPS: Final = frozenset(
    f"aten.{name}" for name in ("index", "index_select", "gather", "select")
)
"""What takes from its first argument, at positions that are of no interest."""

COPIES: Final = frozenset({"aten._to_copy", "aten.clone", "aten._unsafe_view"})
"""What makes a new tensor of the same numbers."""


class Routed(NamedTuple):
    """What is known of numbers that say which token goes to which expert.

    Attributes:
        choice: The call that chose the experts.
        part_call: The call that ``part`` is of.
        part: Which part is true, where the numbers are a mask or made one.
        mean: The mean of the numbers, None if nobody knows.
    """

    choice: int
    part_call: int
    part: float
    mean: float | None


class Routing:
    """Follows the choice of experts; reads each call once.

    Args:
        rows: The calls.
        registry: Numbers of their tensors and storages.
    """

    def __init__(self, rows: RowWriter, registry: TensorRegistry) -> None:
        self._rows = rows
        self._registry = registry
        self._routed: dict[int, Routed] = {}
        self._offset = self._now = 0

    def find(self, storage: int) -> Routed | None:
        """Return what is known of the numbers in a storage, None if not routed."""
        self._rows.flush()
        words, entries = self._rows.words.view(), self._rows.entries
        storages = self._registry.storage_by_tensor
        while self._offset < len(words):
            signature = entries[words[self._offset]].signature
            start = self._offset + HEADER
            split = start + len(signature.inputs)
            end = split + len(signature.outputs)
            read = [storages[word] for word in words[start:split]]
            made = [storages[word] for word in words[split:end]]
            self._follow(signature, read, made)
            self._offset, self._now = end, self._now + 1
        return self._routed.get(storage)

    def _follow(self, signature: Signature, read: list[int], made: list[int]) -> None:
        """Note what one call makes of what is known."""
        name = signature.op.rpartition(".")[0]
        routed = self._routed
        if name in CHOICES and signature.inputs[0].shape:
            part = 1 / max(1, signature.inputs[0].shape[-1])
            found = Routed(self._now, -1, part, None)
        else:
            used = read[:1] if name in LOOKUPS else read
            known = [routed[storage] for storage in used if storage in routed]
            if not known:
                return
            found = self._change(name, signature, max(known, key=age))
        changed = {*made, *(read[i] for i in signature.writes)}
        for storage in changed - ({*read} if not signature.writes else set()):
            routed[storage] = found

    def _change(self, name: str, signature: Signature, known: Routed) -> Routed:
        """Return what is known of what an operator makes."""
        if name in SCATTERS:
            written, positions = signature.inputs[:2]
            part = count(positions) / max(1, count(written))
            return Routed(known.choice, self._now, part, part)
        mean = None
        if name in COPIES:
            mean = known.mean
        elif name in REDUCTIONS:
            ratio = count(signature.inputs[0]) / max(1, count(signature.outputs[0]))
            if name == SUM:
                mean = ratio * (known.part if known.mean is None else known.mean)
            elif name in COUNTS:
                mean = ratio
            return Routed(known.choice, self._now, 1.0, mean)
        return known._replace(mean=mean)


def age(routed: Routed) -> tuple[int, int]:
    """Return by which of several the latest is found."""
    return routed.choice, routed.part_call


def count(geometry: Geometry) -> int:
    """Return the number of elements."""
    return prod(geometry.shape)
