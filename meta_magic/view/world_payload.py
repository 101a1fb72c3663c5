"""The payload of the World view: which rank was recorded, and what it sends.

Module, phase and line of a collective are those of its operator, which the report has.
"""

from typing import TYPE_CHECKING, Any

from meta_magic.trace.sent import Sent
from meta_magic.trace.world import World, describe_ranks
from meta_magic.view.wire import Table, as_columns, as_differences

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


def world_payload(trace: "Trace") -> dict[str, Any]:
    """Return the world of a trace and its collectives; nothing without a world.

    Returns:
        ``world``, if there is one: ``size``, ``rank``, ``per_node``, and ``sent``. Of
        each collective ``ops`` has the operator, as the difference to the one before,
        and ``calls`` an index into the columns of the records of :func:`write_sent`.
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
            "calls": [*map(calls.of, map(read_facts, sent))],
            "sent": as_columns(calls.rows),
        }
    }


def read_facts(sent: Sent) -> tuple[Any, ...]:
    """Return the facts that equal collectives share."""
    return sent.kind, sent.ranks, sent.peer, sent.nbytes, sent.dtype, sent.reduce


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
