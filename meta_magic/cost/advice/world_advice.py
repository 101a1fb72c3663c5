"""Advice on what a rank of a world holds and sends.

Read ``find_replicated_states``, ``find_whole_parameters``, ``find_gathered_twice``,
``find_small_messages``, ``find_separate_reductions``. All need a world.
"""

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.evidence import Advice
from meta_magic.cost.advice.parameter_advice import name_by_storage, shorten
from meta_magic.cost.step_times import USUAL_LINKS, find_links, time_collective
from meta_magic.trace.modules import walk_tensors
from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import World, describe_ranks

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.world import Sent

LEAST_SHARE: Final = 0.05
"""Share of the peak from which there is an advice."""

DISTRIBUTED: Final = "torch.distributed.distributed_c10d"
REDUCE: Final = f"{DISTRIBUTED}.all_reduce"
SHARDING: Final = ("all_gather", "reduce_scatter")


def find_replicated_states(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if each rank holds the whole optimizer state, as with DDP."""
    world = evidence.world
    if world is None or find_sharded(evidence):
        return
    reduced = [
        sent.nbytes
        for sent in evidence.sent
        if sent.kind == "all_reduce" and len(sent.ranks) == world.size
    ]
    storages = np.flatnonzero(evidence.is_of("optimizer_state"))
    gradients = np.flatnonzero(evidence.is_of("gradient"))
    is_reduced = 2 * sum(reduced) >= evidence.nbytes[gradients].sum() > 0
    if not is_reduced or not steps_all(evidence):
        return
    nbytes = int(evidence.nbytes[storages].sum())
    saved = nbytes - nbytes // world.size
    if saved >= LEAST_SHARE * evidence.peak_nbytes:
        makers = evidence.maker[storages]
        yield Advice(
            kind="replicated",
            text=f"each of {world.size:,} ranks holds the whole optimizer state "
            f"({format_bytes(nbytes)}); ZeroRedundancyOptimizer or fully_shard divides "
            "it among them",
            lines=evidence.lines_of(makers[makers >= 0].tolist()),
            nbytes=saved,
            peak_nbytes=saved,
            choice="zero",
        )


def steps_all(evidence: "Evidence") -> bool:
    """Whether the rank steps each trained parameter; with ZeRO it steps a part."""
    columns, sent = evidence.columns, {sent.index for sent in evidence.sent}
    is_own = evidence.is_in("optimizer")
    is_own[[*sent]] = False
    is_own &= ~evidence.is_received
    stepped = {*columns.storage[columns.is_written & is_own[columns.call]].tolist()}
    trained = name_by_storage(evidence.modules).keys()
    return bool(trained) and trained <= stepped


def find_sharded(evidence: "Evidence") -> bool:
    """Return whether any parameter is sharded."""
    tensors = walk_tensors(evidence.modules)
    return any(tensor.sharding is not None for _, tensor, _ in tensors)


def find_whole_parameters(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if a large parameter is whole, while others are sharded."""
    world = evidence.world
    if world is None:
        return
    for root in evidence.modules:
        names = name_by_storage([root])
        held = {
            storage: (tensor.sharding, evidence.nbytes[storage])
            for _, tensor, storage in walk_tensors([root])
            if storage in names
        }
        whole = {s: int(n) for s, (sharding, n) in held.items() if sharding is None}
        total = sum(int(nbytes) for _, nbytes in held.values())
        large = {s: n for s, n in whole.items() if n >= LEAST_SHARE * total}
        if large and len(whole) < len(held):
            nbytes = sum(large.values())
            verb = "is" if len(large) == 1 else "are"
            yield Advice(
                kind="unsharded",
                text=f"{shorten([names[s] for s in large])} ({format_bytes(nbytes)}) "
                f"{verb} whole on each rank, while other parameters of the model are "
                "sharded",
                lines=evidence.lines_of(
                    maker for s in large if (maker := int(evidence.maker[s])) >= 0
                ),
                nbytes=nbytes,
                peak_nbytes=nbytes - nbytes // world.size,
                choice="sharded root" if has_fully_sharded(root) else None,
            )


def has_fully_sharded(root: "ModuleNode") -> bool:
    """Whether ``fully_shard`` was called with a module of a tree."""
    return any(node.class_name.startswith("FSDP") for node in root.walk())


def find_gathered_twice(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if a tensor is gathered that the rank still has gathered."""
    columns, last = evidence.columns, dict[object, tuple[int, int]]()
    is_own = columns.is_written & ~evidence.is_received[columns.call]
    last_write = evidence.last_call(is_own)
    for sent in evidence.sent:
        if sent.kind != "all_gather":
            continue
        part = evidence.tensors_of(sent.index)
        is_made = columns.is_made[part] | columns.is_written[part]
        storages = columns.storage[part]
        key = sent.ranks, tuple(storages[~is_made].tolist())
        result = int(storages[is_made][0]) if is_made.any() else -1
        before, former = last.get(key, (-1, -1))
        last[key] = sent.index, result
        if former < 0 or not key[1]:
            continue
        is_same = all(last_write[s] < before for s in key[1])
        is_kept = evidence.stop[former] > sent.index and last_write[former] <= before
        if is_same and is_kept:
            sites = evidence.call_sites_of([before, sent.index])
            functions = {evidence.program.call_sites[n].function for n in sites}
            is_direct = all(str(name).startswith(DISTRIBUTED) for name in functions)
            yield Advice(
                kind="gathered",
                text=f"{format_bytes(sent.nbytes)} of {sent.dtype} are gathered again "
                "while the rank still holds them, unchanged",
                lines=evidence.lines_of([before, sent.index]),
                nbytes=sent.nbytes,
                peak_nbytes=evidence.save_without(np.asarray([result])),
                seconds=measure(evidence, [sent])[0],
                choice="one gather" if sites and is_direct else None,
                call_sites=sites,
            )


LEAST_CALLS: Final = 8
MOST_LATENCY: Final = 0.5
"""Share of the time of messages that is latency, from which there is an advice."""

LEAST_SECONDS: Final = 1e-3
LEAST_TIME: Final = 0.1
"""Share of the time of all communication that these messages take."""


def measure(evidence: "Evidence", group: "Sequence[Sent]") -> tuple[float, float]:
    """Return the seconds that messages take, and the share that is latency."""
    links, world = find_links(USUAL_LINKS), evidence.world or World(1)
    seconds = sum(time_collective(sent, links, world) for sent in group)
    empty = (replace(sent, nbytes=0) for sent in group)
    latency = sum(time_collective(sent, links, world) for sent in empty)
    return seconds, latency / seconds if seconds else 0.0


def find_small_messages(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice on each line whose messages spend their time on latency."""
    if not evidence.sent:
        return
    by_line: dict[tuple[object, ...], list[Sent]] = defaultdict(list)
    separate = {sent.index for run in find_runs(evidence) for sent in run}
    for sent in evidence.sent:
        if sent.index not in separate:
            by_line[sent.kind, sent.ranks, sent.line].append(sent)
    total, _ = measure(evidence, evidence.sent)
    for group in by_line.values():
        seconds, latency = measure(evidence, group)
        is_small = len(group) >= LEAST_CALLS and latency >= MOST_LATENCY
        if is_small and seconds >= max(LEAST_SECONDS, LEAST_TIME * total):
            most = max(sent.nbytes for sent in group)
            one = group[0]
            is_shard = one.kind in SHARDING and any(
                map(has_fully_sharded, evidence.modules)
            )
            yield Advice(
                kind="small messages",
                text=f"{len(group):,} {one.kind} of at most {format_bytes(most)} among "
                f"ranks {describe_ranks(one.ranks)} spend {latency:.0%} of "
                f"their time on latency (by {USUAL_LINKS}): send fewer, larger ones",
                lines=() if one.line is None else (one.line,),
                seconds=seconds * latency,
                choice="coarser shards" if is_shard else None,
            )


def find_separate_reductions(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice on all-reduces in a row for which one call would do."""
    by_sites: dict[tuple[int, ...], list[list[Sent]]] = defaultdict(list)
    for run in find_runs(evidence):
        of_run = evidence.columns.call_site[[sent.index for sent in run]]
        by_sites[tuple(of_run.tolist())].append(run)
    n_lengths = Counter(frozenset(sites) for sites in by_sites)
    for sites, runs in by_sites.items():
        first, n_bytes = runs[0][0], sum(sent.nbytes for sent in runs[0])
        seconds, _ = measure(evidence, runs[0])
        at_once, _ = measure(evidence, [replace(first, nbytes=n_bytes)])
        times = f", {len(runs):,} times" if len(runs) > 1 else ""
        yield Advice(
            kind="separate reductions",
            text=f"{len(sites):,} all_reduce in a row among ranks "
            f"{describe_ranks(first.ranks)}{times}, {format_bytes(n_bytes)} together: "
            "nothing between them reads a result, so one call with one tensor "
            f"(torch.stack, torch.cat) would do, in {at_once * 1e6:,.0f} us in place "
            f"of {seconds * 1e6:,.0f} (by {USUAL_LINKS})",
            lines=evidence.lines_of(sent.index for sent in runs[0]),
            seconds=len(runs) * (seconds - at_once),
            choice="one all_reduce" if n_lengths[frozenset(sites)] == 1 else None,
            call_sites=sites,
        )


def find_runs(evidence: "Evidence") -> "Iterator[list[Sent]]":
    """Yield all-reduces in a row that wait for latency more than for bytes.

    The user's code calls them, outside of backward, with which they may overlap. Group,
    dtype and reduction are equal, no other collective is between them, and no call up
    to the last of them reads or writes the result of one.
    """
    columns = evidence.columns
    run: list[Sent] = []
    is_sent = evidence.calls_of(lambda s: "c10d." in s.op)
    is_used = ~evidence.calls_of(lambda s: s.is_view) & ~evidence.is_received

    def touch(calls: "Iterable[int]") -> set[int]:
        tensors = (columns.storage[evidence.tensors_of(call)] for call in calls)
        return {storage for part in tensors for storage in part.tolist()}

    def goes_on(sent: "Sent") -> bool:
        last, calls = run[-1], [one.index for one in run]
        sites = columns.call_site[[*calls, sent.index]].tolist()
        between = np.arange(last.index + 1, sent.index)
        used = [*between[is_used[between]].tolist(), sent.index]
        return (
            (last.ranks, last.dtype, last.reduce)
            == (sent.ranks, sent.dtype, sent.reduce)
            and (sites[-1] == sites[-2] or sites[-1] not in sites[:-1])
            and not is_sent[between].any()
            and touch(calls).isdisjoint(touch(used))
        )

    for sent in (*evidence.sent, None):
        is_ours = sent is not None and is_called(evidence, sent)
        if run and sent is not None and is_ours and goes_on(sent):
            run.append(sent)
            continue
        if len(run) > 1 and measure(evidence, run)[1] >= MOST_LATENCY:
            yield run
        run = [sent] if sent is not None and is_ours else []


def is_called(evidence: "Evidence", sent: "Sent") -> bool:
    """Whether the user's own code calls ``all_reduce``, outside of backward."""
    number = int(evidence.columns.call_site[sent.index])
    site = evidence.program.call_sites[number]
    if site.position is None or site.function != REDUCE or sent.phase == "backward":
        return False
    text = linecache.getline(site.position.file, site.position.line)
    return "all_reduce" in text and bool(evidence.is_own[sent.index])
