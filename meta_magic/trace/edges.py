"""Which operator made what another one reads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from meta_magic.trace.calls import OpCall, TensorMetadata

__all__ = ["Edge", "find_edges", "list_made"]

OUTSIDE: Final = (-1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor on its way from one operator to another.

    Attributes:
        source: Index of the operator that made it, or that last wrote its storage; None
            if it came from outside of the recording.
        output: Which of :func:`list_made` of the source it is; 0 from outside.
        target: Index of the operator that reads it.
        input: Which of the target's inputs it is.
        tensor: Its metadata when it was read.
    """

    source: int | None
    output: int
    target: int
    input: int
    tensor: TensorMetadata


def list_made(call: OpCall) -> list[TensorMetadata]:
    """Return what a call returned, and then what it wrote without returning it."""
    returned = {tensor.tensor_id for tensor in call.outputs}
    written = (call.inputs[i] for i in call.writes)
    return [*call.outputs, *(t for t in written if t.tensor_id not in returned)]


def find_edges(calls: Iterable[OpCall]) -> Iterator[Edge]:
    """Yield an edge for each tensor that each call reads, in order.

    Written in place, a tensor is a new value, and so are all that share its storage.
    """
    makers: dict[int, tuple[int, int]] = {}
    writers: dict[int, tuple[int, int]] = {}
    for call in calls:
        for number, tensor in enumerate(call.inputs):
            made = makers.get(tensor.tensor_id, OUTSIDE)
            written = writers.get(tensor.storage_id, OUTSIDE)
            source, output = written if written[0] > made[0] else made
            yield Edge(
                source=None if source < 0 else source,
                output=output,
                target=call.index,
                input=number,
                tensor=tensor,
            )
        storages = {call.inputs[i].storage_id for i in call.writes}
        for number, tensor in enumerate(list_made(call)):
            makers[tensor.tensor_id] = call.index, number
            # A parameter is a tensor that no operator made, on a storage that one did.
            if tensor.storage_id in storages or tensor.storage_id not in writers:
                writers[tensor.storage_id] = call.index, number
