"""Advice on what a rank of a world holds and sends.

Read ``find_replicated_states``, ``find_whole_parameters``, ``find_gathered_twice`` and
``find_small_messages``. All are silent without a world.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.advice.parameter_advice import name_by_storage, shorten
from meta_magic.cost.step_times import USUAL_LINKS, find_links, time_collective
from meta_magic.trace.modules import walk_tensors
from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import describe_ranks

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.trace.world import Sent

LEAST_SHARE: Final = 0.05
"""Share of the peak from which there is an advice."""


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
            )


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
            yield Advice(
                kind="gathered",
                text=f"{format_bytes(sent.nbytes)} of {sent.dtype} are gathered again "
                "while the rank still holds them, unchanged",
                lines=evidence.lines_of([before, sent.index]),
                nbytes=sent.nbytes,
                peak_nbytes=evidence.save_without(np.asarray([result])),
            )


LEAST_CALLS: Final = 8
MOST_LATENCY: Final = 0.5
"""Share of the time of messages that is latency, from which there is an advice."""

LEAST_SECONDS: Final = 1e-3
LEAST_TIME: Final = 0.1
"""Share of the time of all communication that these messages take."""


def find_small_messages(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice on each line whose messages spend their time on latency."""
    world = evidence.world
    if world is None:
        return
    links = find_links(USUAL_LINKS)
    by_line: dict[tuple[object, ...], list[Sent]] = defaultdict(list)
    for sent in evidence.sent:
        by_line[sent.kind, sent.ranks, sent.line].append(sent)
    total = sum(time_collective(sent, links, world) for sent in evidence.sent)
    for group in by_line.values():
        seconds = sum(time_collective(sent, links, world) for sent in group)
        empty = (replace(sent, nbytes=0) for sent in group)
        latency = sum(time_collective(sent, links, world) for sent in empty)
        is_small = len(group) >= LEAST_CALLS and latency >= MOST_LATENCY * seconds
        if is_small and seconds >= max(LEAST_SECONDS, LEAST_TIME * total):
            most = max(sent.nbytes for sent in group)
            one = group[0]
            yield Advice(
                kind="small messages",
                text=f"{len(group):,} {one.kind} of at most {format_bytes(most)} among "
                f"ranks {describe_ranks(one.ranks)} spend {latency / seconds:.0%} of "
                f"their time on latency (by {USUAL_LINKS}): send fewer, larger ones",
                lines=() if one.line is None else (one.line,),
            )
