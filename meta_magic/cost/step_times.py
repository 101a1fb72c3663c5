"""Estimate how long a rank computes and sends, and how much of both overlaps.

Kernels are queued in the order of the program, on one stream; collectives on another
one for each group. Each starts when its stream is free and its inputs are ready, as on
a GPU whose work is queued early enough. An estimate, never exact: links reach
the rates of their data sheets, and nothing else uses them. Read
:func:`estimate_step_time`.

Source:
    Thakur, Rabenseifner and Gropp, Optimization of collective communication operations
    in MPICH, 2005: a message of n bytes takes alpha + n / rate; rings and trees.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import ceil, log2
from typing import TYPE_CHECKING, Final

from meta_magic.cost.device_table import Device
from meta_magic.errors import UnknownDeviceError
from meta_magic.trace.world import World

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace
    from meta_magic.trace.world import Sent

BASE_LATENCY: Final = 8.4e-6
"""Seconds to start a collective: NCCL's own estimate, protocol Simple."""


USUAL_LINKS: Final = "nvlink4-ib400"
"""The links that are taken where nobody names others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How accelerators are connected, and the rate that each gets.

    Attributes:
        name: Its name in ``links.toml``.
        within: Bytes in a second, in one direction, between those of one machine.
        between: Bytes in a second of its share of the network between machines.
        latency_within: Seconds of a step of a ring within a machine.
        latency_between: Seconds of a step between machines.
    """

    name: str
    title: str
    within: float
    between: float
    latency_within: float
    latency_between: float
    source: str


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The estimated time of a recorded rank.

    Attributes:
        compute: Seconds of all kernels, one after the other.
        communication: Seconds of all collectives, one after the other.
        seconds: Seconds from the first call to the last, with what overlaps.
        by_kind: Seconds of each kind of collective.

    Example:
        >>> with record(world=8) as trace:
        ...     torch.distributed.init_process_group("nccl")
        ...     torch.distributed.all_reduce(torch.ones(10**9))
        >>> time = trace.step_time("h100-sxm", links="nvlink4-ib400")
        >>> round(time.communication, 4)  # 8.4e-6 + 14 * 3.4e-6 + 14/8 * 4e9 / 450e9
        0.0156
    """

    device: Device
    links: Links
    compute: float
    communication: float
    seconds: float
    by_kind: Mapping[str, float] = field(repr=False)

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return self.seconds - self.compute

    def __str__(self) -> str:
        return (
            f"about {self.seconds:.3g} s on {self.device.title}, "
            f"{self.links.title}: {self.compute:.3g} s of computing, "
            f"{self.communication:.3g} s of sending; for {self.exposed:.3g} s nothing "
            "is computed"
        )


@cache
def known_links() -> dict[str, Links]:
    """Return the links of ``links.toml`` by name."""
    table = tomllib.loads((files("meta_magic.cost") / "links.toml").read_text("utf-8"))
    return {name: Links(name=name, **entry) for name, entry in table.items()}


def find_links(links: str | Links) -> Links:
    """Return the links of a name; :class:`Links` are returned as they are."""
    if isinstance(links, Links):
        return links
    if links not in known_links():
        raise UnknownDeviceError(
            f"no links {links!r} are known. Known are {', '.join(known_links())}"
        )
    return known_links()[links]


def time_collective(sent: "Sent", links: Links, world: World) -> float:
    """Return the seconds that a collective takes."""
    n = len(sent.ranks) if sent.peer is None else 2
    if n < 2:  # noqa: PLR2004  nothing is sent
        return 0.0
    n_nodes = world.count_nodes(sent.ranks, sent.peer)
    most = ceil(n / n_nodes)
    if n_nodes == 1:
        rate, latency = links.within, links.latency_within * (n - 1)
    else:  # rings through all adapters of a machine
        rate = min(links.within, links.between * most)
        latency = links.latency_within * (n - n_nodes)
        latency += links.latency_between * n_nodes
    step = links.latency_between if n_nodes > 1 else links.latency_within
    size, share = sent.nbytes, (n - 1) / n
    match sent.kind:
        case "all_reduce":
            ring = 2 * latency + 2 * share * size / rate
            tree = 2 * ceil(log2(n)) * step + 2 * size / rate
            seconds = min(ring, tree)
        case "all_gather" | "reduce_scatter":
            seconds = latency + share * size / rate
        case "all_to_all":
            rate = links.within if n_nodes == 1 else links.between
            seconds = step + share * size / rate
        case "send" | "recv":
            rate = links.within if n_nodes == 1 else links.between
            seconds = step + size / rate
        case _:  # from one to all, or from all to one
            seconds = ceil(log2(n)) * step + size / rate
    return BASE_LATENCY + seconds


def estimate_step_time(trace: "Trace", device: str | Device, links: str) -> StepTime:
    """Return the estimated time of what a rank recorded; see :class:`StepTime`."""
    connected, cost = find_links(links), trace.cost
    world = trace.world or World(1)
    roofline = cost.roofline(device)
    sent = {
        one.index: (one, time_collective(one, connected, world)) for one in trace.sent
    }
    columns = trace.columns
    storages, ends = columns.storage.tolist(), columns.first.tolist()
    changes = (columns.is_made | columns.is_written).tolist()
    ready: dict[int, float] = {}
    free: dict[object, float] = {}
    compute, by_kind = 0.0, dict[str, float]()
    for index, number in enumerate(cost.signature.tolist()):
        part = slice(ends[index], ends[index + 1])
        touched = storages[part]
        if index in sent:
            one, seconds = sent[index]
            stream: object = one.ranks
            by_kind[one.kind] = by_kind.get(one.kind, 0.0) + seconds
        else:
            seconds, stream = roofline.seconds_each[number], None
            compute += seconds
        start = max([free.get(stream, 0.0), *(ready.get(s, 0.0) for s in touched)])
        free[stream] = start + seconds
        for storage, is_changed in zip(touched, changes[part], strict=True):
            if is_changed:
                ready[storage] = start + seconds
    return StepTime(
        device=roofline.device,
        links=connected,
        compute=compute,
        communication=sum(by_kind.values()),
        seconds=max(free.values(), default=0.0),
        by_kind=by_kind,
    )
