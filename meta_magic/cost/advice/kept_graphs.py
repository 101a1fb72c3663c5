"""Advice on autograd graphs that are kept alive to the end: a leak.

``losses.append(loss)`` in a loop keeps every graph. A single graph that is alive may be
used later. But if the same line has made several graphs that share only leaves, and all
are alive, no variable holds them: it would hold the last one. Read ``find_kept_graphs``
first.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.storage_categories import CATEGORIES
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Flags, Integers


DETACH: Final = "aten.detach.default"
SAVED: Final = CATEGORIES.index("saved")
INPUT: Final = CATEGORIES.index("input")

MIN_GRAPHS: Final = 3
"""Two graphs may be a pair that is compared later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Connected calls that autograd recorded.

    Attributes:
        saved: The storages that the graph keeps alive at the end.
    """

    calls: tuple[int, ...]
    saved: tuple[int, ...]


def find_kept_graphs(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each call site whose graphs are all alive at the end."""
    graphs_by_site = defaultdict(list)
    for graph in find_graphs(evidence):
        graphs_by_site[find_key(evidence, graph)].append(graph)
    for graphs in graphs_by_site.values():
        if len(graphs) >= MIN_GRAPHS:
            yield describe(evidence, graphs)


def describe(evidence: "Evidence", graphs: Sequence[Graph]) -> Advice:
    """Return the advice on graphs of one call site; a variable may hold the last."""
    stop = evidence.stop.copy()
    freed: list[int] = []
    for graph, following in pairwise(graphs):
        freed += graph.saved
        stop[list(graph.saved)] = following.calls[-1] + 1
    nbytes = int(evidence.nbytes[freed].sum())
    shares = np.ones(len(stop))
    call_sites = evidence.call_sites_of(graph.calls[-1] for graph in graphs)
    return Advice(
        kind="leak",
        text=f"{len(graphs):,} results are kept to the end, and with each the graph "
        f"that made it: {format_bytes(nbytes)} besides the last; keep .detach() or "
        ".item() of them, or compute them under torch.no_grad()",
        lines=evidence.lines_of(graph.calls[-1] for graph in graphs),
        nbytes=nbytes,
        peak_nbytes=evidence.save_by(shares, stop),
        choice=".detach()" if call_sites else None,
        call_sites=call_sites,
    )


def find_key(evidence: "Evidence", graph: Graph) -> tuple[object, ...]:
    """Return what graphs of one loop share: operators, last site, outermost caller."""
    columns, calls = evidence.columns, list(graph.calls)
    ops = [evidence.program.signatures[n].op for n in columns.signature[calls]]
    last = int(columns.call_site[calls[-1]])
    return tuple(ops), last, find_caller(evidence, calls[0])


def find_caller(evidence: "Evidence", call: int) -> tuple[int, int] | None:
    """Return module and position of the outermost module call of a call, or None."""
    program = evidence.program
    word = memoryview(program.words).cast("I")[program.offsets[call] + 2]
    if not word or word % 2:
        return None
    rows = memoryview(program.module_rows).cast("I")
    row = word // 2 - 1
    while rows[row * MODULE_HEADER + 1]:
        row = rows[row * MODULE_HEADER + 1] - 1
    return rows[row * MODULE_HEADER], rows[row * MODULE_HEADER + 2]


def find_graphs(evidence: "Evidence") -> Iterator[Graph]:
    """Yield graphs of forward calls that keep tensors alive, and had no backward."""
    columns = evidence.columns
    calls_by_graph = sorted(join_calls(evidence), key=lambda calls: calls[-1])
    touched = [
        np.unique(
            np.concatenate([columns.storage[evidence.tensors_of(c)] for c in calls])
        )
        for calls in calls_by_graph
    ]
    if len(touched) < MIN_GRAPHS:
        return
    n_graphs = np.bincount(np.concatenate(touched), minlength=columns.n_storages)
    went_back = np.zeros(columns.n_calls, np.bool_)
    went_back[columns.forward[columns.forward >= 0]] = True
    is_detach = evidence.calls_of(lambda s: s.op == DETACH)
    last_detached = evidence.last_call(is_detach[columns.call] & ~columns.is_made)
    begin = -1
    for calls, storages in zip(calls_by_graph, touched, strict=True):
        if not went_back[calls].any():
            own = storages[n_graphs[storages] == 1]
            is_detached = last_detached[own] > calls[-1]
            saved = list_kept(evidence, own, is_detached, begin, calls[-1])
            if saved:
                yield Graph(calls=tuple(calls), saved=saved)
        begin = calls[-1]


def list_kept(
    evidence: "Evidence",
    storages: "Integers",
    is_detached: "Flags",
    begin: int,
    end: int,
) -> tuple[int, ...]:
    """Return the storages that a graph keeps alive, without its result.

    A graph is alive if its result is, and was not detached; or if all tensors are that
    autograd saved. If some of those are freed, the graph is freed too, and the user
    holds the others. ``begin`` and ``end`` are the last calls of the graph before and
    of this one.
    """
    maker, is_last = evidence.maker[storages], evidence.is_last[storages]
    category = evidence.memory.category[storages]
    is_saved = (category == SAVED) & (maker >= 0)
    is_data = (category == INPUT) & (maker > begin)
    is_result = (maker == end) & is_last & ~is_detached
    are_all = is_last[is_saved].all() and np.count_nonzero(is_saved) > 1
    if not are_all and not is_result.any():
        return ()
    is_kept = is_last & (is_saved | is_data) & (maker != end)
    return tuple(storages[is_kept].tolist())


def join_calls(evidence: "Evidence") -> list[list[int]]:
    """Return differentiated calls by graphs that share storages (union-find)."""
    columns, is_inner = evidence.columns, find_inner(evidence)
    above = list(range(columns.n_storages))

    def find(storage: int) -> int:
        while above[storage] != storage:
            above[storage] = above[above[storage]]
            storage = above[storage]
        return storage

    inner_by_call = []
    differentiated = np.frombuffer(evidence.program.facts.differentiated, np.uint32)
    for call in differentiated.tolist():
        storages = columns.storage[evidence.tensors_of(call)]
        inner = storages[is_inner[storages]].tolist()
        inner_by_call.append((call, inner))
        for storage in inner[1:]:
            above[find(storage)] = find(inner[0])
    joined: dict[int, list[int]] = defaultdict(list)
    for call, inner in inner_by_call:
        if inner:
            joined[find(inner[0])].append(call)
    return [*joined.values()]


def find_inner(evidence: "Evidence") -> "Flags":
    """Return for each storage whether it is made, or written, within a graph."""
    columns = evidence.columns
    n_read = np.bincount(columns.call[~columns.is_made], minlength=columns.n_calls)
    is_chosen = np.zeros(columns.n_calls + 1, np.bool_)
    is_chosen[np.frombuffer(evidence.program.facts.differentiated, np.uint32)] = True
    is_chosen[:-1] &= n_read > 0  # a call that reads nothing makes leaves
    is_inner = is_chosen[evidence.maker]
    written = columns.is_written & is_chosen[columns.call]
    is_inner[columns.storage[written]] = True
    inner: Flags = is_inner & ~evidence.is_of("parameter") & ~evidence.is_of("buffer")
    return inner
