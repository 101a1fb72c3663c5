"""The payload of the World view: which rank was recorded, and what it sends.

Module, phase and line of a collective are those of its operator, which the report has.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from meta_magic.trace.modules import ModuleTensor, distinct_tensors
from meta_magic.trace.world import World, describe_ranks
from meta_magic.view.wire import Table, as_columns, as_differences

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


def world_payload(trace: "Trace") -> dict[str, Any]:
    """Return the world of a trace and its collectives; nothing without a world.

    Returns:
        ``world``, if there is one: ``size``, ``rank``, ``per_node``, ``meshes`` (see
        :func:`write_meshes`) and ``sent``. Of each collective ``ops`` has the operator,
        as the difference to the one before, and ``calls`` an index into the columns of
        the records of :func:`write_sent`.
    """
    world = trace.world
    if world is None:
        return {}
    calls: Table[tuple[Any, ...]] = Table(lambda facts: write_sent(facts, world))
    sent = trace.sent
    return {
        "world": {
            "size": world.size,
            "rank": world.rank,
            "per_node": world.per_node,
            "ops": as_differences([one.index for one in sent]),
            "calls": [*map(calls.of, map(FACTS, sent))],
            "sent": as_columns(calls.rows),
            "meshes": [*write_meshes(trace)],
        }
    }


def write_meshes(trace: "Trace") -> Iterator[dict[str, Any]]:
    """Yield each mesh with what lies on it; at the end what lies on none.

    Yields:
        ``dims``: (name, ranks) of each dimension, and ``rows``: how tensors lie on it,
        how many there are, their bytes on this rank and in all. Else nothing.
    """
    by_mesh: dict[Any, dict[str, list[int]]] = {}
    for tensor in distinct_tensors(trace.modules):
        if tensor.kind == "attribute":
            continue
        rows = by_mesh.setdefault(tensor.mesh, {})
        row = rows.setdefault(describe_sharding(tensor), [0, 0, 0])
        whole = tensor.numel * tensor.dtype.itemsize
        for i, added in enumerate((1, tensor.nbytes, whole)):
            row[i] += added
    for dims in sorted(by_mesh, key=len, reverse=True) if any(by_mesh) else ():
        lying = sorted(by_mesh[dims].items(), key=lambda item: -item[1][1])
        yield {"dims": dims, "rows": [[words, *sums] for words, sums in lying]}


def describe_sharding(tensor: ModuleTensor) -> str:
    """Return how a tensor lies on its mesh: ``Shard(0) on dp, Replicate() on tp``."""
    placements = (tensor.sharding or "").split(", ")
    if len(placements) != len(tensor.mesh):
        return tensor.sharding or "whole on each rank"
    return ", ".join(
        f"{placement} on {name}" if name else placement
        for placement, (name, _) in zip(placements, tensor.mesh, strict=True)
    )


FACTS: Final = attrgetter("kind", "ranks", "peer", "nbytes", "dtype", "reduce")
"""The facts that equal collectives share."""


def write_sent(facts: tuple[Any, ...], world: World) -> dict[str, Any]:
    """Return a collective: its group as text, and how many machines the group spans."""
    kind, ranks, peer, nbytes, dtype, reduce = facts
    return {
        "kind": kind,
        "ranks": describe_ranks(ranks),
        "n_ranks": len(ranks),
        "n_nodes": world.count_nodes(ranks, peer),
        "peer": -1 if peer is None else peer,
        "nbytes": nbytes,
        "dtype": dtype,
        "reduce": reduce or "",
    }
