"""Advice on large tensors that are kept for backward: activations, scores, graphs.

``find_costly_activations`` looks for blocks that could be computed again instead,
``find_math_attention`` for attention that makes a matrix of all pairs of tokens, and
``find_kept_graphs`` for a leak: ``losses.append(loss)`` in a loop keeps every graph. A
single graph that is alive may be used later. But if one line has made several graphs
that share only leaves, and all are alive, no variable holds them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.evidence import Advice
from meta_magic.cost.storage_lives import CATEGORIES
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.units import format_bytes, format_flops

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Flags, Integers
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program_facts import KernelChoice


HOLDERS: Final = frozenset({"ModuleList", "Sequential"})

LEAST_SHARE: Final = 1 / 3
"""Share of the peak from which it is worth to compute a forward again."""

LEAST_NBYTES: Final = 1 << 30
"""Peak below which there is no advice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Blocks in one list or sequence.

    Attributes:
        calls: (first operator call, the one after the last) of each of their calls.
        storages: Storages that autograd saves in them, without their results.
        start: For each storage the call after which its block has returned.
        stop: For each storage the first backward call of its block.
    """

    name: str
    calls: Sequence[tuple[int, int]]
    storages: "Integers"
    start: "Integers"
    stop: "Integers"


def find_costly_activations(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if much of a large peak is saved by blocks for backward."""
    if evidence.peak_nbytes < LEAST_NBYTES or len(evidence.program.facts.repeated):
        return
    if not evidence.is_in("backward").any():
        return
    rows = [*find_rows(evidence)]
    if not rows:
        return
    columns = [
        np.concatenate([getattr(row, name) for row in rows])
        for name in ("storages", "start", "stop")
    ]
    saved = evidence.save_between(*columns)
    if saved >= LEAST_SHARE * evidence.peak_nbytes:
        yield describe(evidence, rows, saved)


def describe(evidence: "Evidence", rows: Sequence[Row], saved: int) -> Advice:
    """Return the advice on rows of blocks."""
    costs = [(row, *weigh(evidence, row)) for row in rows]
    costs.sort(key=lambda cost: -cost[1] / max(cost[2], 1))
    words = [
        f"{row.name} ({format_bytes(nbytes)} for {format_flops(flops)})"
        for row, nbytes, flops in costs
    ]
    return Advice(
        kind="activations",
        text=f"{format_bytes(saved)} of the peak are activations that checkpointing "
        f"would compute again: the blocks of {', '.join(words)}",
        lines=evidence.lines_of(first for row in rows for first, _ in row.calls),
        nbytes=sum(nbytes for _, nbytes, _ in costs),
        peak_nbytes=saved,
        flops=-sum(flops for _, _, flops in costs),
        choice="checkpointing",
    )


def weigh(evidence: "Evidence", row: Row) -> tuple[int, int]:
    """Return the bytes that blocks save, and the FLOPs to compute them again."""
    flops = sum(int(evidence.flops[first:end].sum()) for first, end in row.calls)
    return int(evidence.nbytes[row.storages].sum()), flops


def find_rows(evidence: "Evidence") -> Iterator[Row]:
    """Yield the rows of blocks that save tensors for backward."""
    program, inside = evidence.program, Inside(evidence)
    rows = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    calls_by_module = defaultdict(list)
    for module, first, end in rows[:, [0, 4, 5]].tolist():
        calls_by_module[program.modules[module][:2]].append((first, end))
    for number, root in enumerate(evidence.modules):
        for holder, blocks in list_blocks(root):
            name = ".".join(filter(None, (root.name, holder.fqn)))
            calls = [c for block in blocks for c in calls_by_module[number, block.fqn]]
            found = [(call, inside.find_saved(call)) for call in calls]
            found = [(call, saved) for call, saved in found if len(saved)]
            if found:
                yield inside.build_row(name, found)


class Inside:
    """Finds the storages that are saved and read inside of a block's call only."""

    def __init__(self, evidence: "Evidence") -> None:
        self._evidence, columns = evidence, evidence.columns
        reads = ~columns.is_made & ~evidence.is_in("backward")[columns.call]
        self._last_read = evidence.last_call(reads)
        self._is_saved = evidence.is_of("saved") & ~evidence.is_last
        self._back = np.full(columns.n_calls, columns.n_calls)
        backward = np.flatnonzero(columns.forward >= 0)
        np.minimum.at(self._back, columns.forward[backward], backward)

    def find_saved(self, call: tuple[int, int]) -> "Integers":
        """Return the storages that a block's call saves, without its results."""
        first, end = call
        columns, maker = self._evidence.columns, self._evidence.maker
        own = np.unique(columns.storage[columns.first[first] : columns.first[end]])
        is_inner = self._is_saved[own] & (maker[own] >= first) & (maker[own] < end)
        inner: Integers = own[is_inner & (self._last_read[own] < end)]
        return inner

    def build_row(
        self, name: str, found: "Sequence[tuple[tuple[int, int], Integers]]"
    ) -> Row:
        """Return a row, given its calls with the storages that each saves."""
        counts = [len(saved) for _, saved in found]
        start = np.repeat([end for (_, end), _ in found], counts)
        back = [self._back[first:end].min() for (first, end), _ in found]
        stop = np.repeat(back, counts)
        return Row(
            name=name,
            calls=[call for call, _ in found],
            storages=np.concatenate([saved for _, saved in found]),
            start=np.minimum(start, stop),
            stop=stop,
        )


def list_blocks(root: "ModuleNode") -> "Iterator[tuple[ModuleNode, list[ModuleNode]]]":
    """Yield lists of blocks, each with its blocks, as ``checkpointing`` finds them.

    Blocks are modules of one class, with submodules, in a ``ModuleList`` or
    ``Sequential``; blocks inside of blocks are left out.
    """
    for child in root.children:
        kinds = [one.class_name for one in child.children]
        blocks = [
            one
            for one in child.children
            if child.class_name in HOLDERS
            and kinds.count(one.class_name) > 1
            and one.children
        ]
        if blocks:
            yield child, blocks
        else:
            yield from list_blocks(child)


LEAST_SCORES_SHARE: Final = 0.1
"""Share of the peak from which a fused kernel helps."""

CHOICES: Final = (
    ("dropout_p is", "dropout_p=0"),
    ("switched off", "all kernels"),
    ("elements of a head are apart", ".contiguous()"),
)
"""Parts of reasons, and the choice with which a fused kernel runs."""

MUCH_NBYTES: Final = 1 << 30
"""Bytes that are worth an advice, however large the peak is."""


def find_math_attention(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each reason why no fused kernel is chosen."""
    choices_by_text: dict[str, list[KernelChoice]] = defaultdict(list)
    for choice in evidence.program.kernels:
        if ": " in choice.text:
            choices_by_text[choice.text].append(choice)
    for text, choices in choices_by_text.items():
        kernel, _, reason = text.partition(": ")
        numel = spread_scores(evidence, choices)
        scores = find_scores(evidence, numel)
        nbytes = int(evidence.nbytes[scores].sum())
        saved = evidence.save_without(scores)
        if saved >= min(LEAST_SCORES_SHARE * evidence.peak_nbytes, MUCH_NBYTES) > 0:
            times = f", {len(choices):,} times" if len(choices) > 1 else ""
            yield Advice(
                kind="attention",
                text="attention runs no fused kernel on "
                f"{kernel.rpartition(' ')[2]}{times}, because {reason}; a fused kernel "
                f"would not make the {format_bytes(nbytes)} of scores",
                lines=evidence.lines_of(choice.first_op for choice in choices),
                nbytes=nbytes,
                peak_nbytes=saved,
                choice=next((c for part, c in CHOICES if part in reason), None),
                call_sites=evidence.call_sites_of(
                    choice.first_op for choice in choices
                ),
            )


def spread_scores(evidence: "Evidence", choices: "list[KernelChoice]") -> "Integers":
    """Return how many scores each call's attention has, also backward; else 0."""
    columns, signatures = evidence.columns, evidence.program.signatures
    numel = np.zeros(columns.n_calls, np.int64)
    for choice in choices:
        for call in range(choice.first_op, choice.end_op):
            signature = signatures[columns.signature[call]]
            if "softmax" in signature.op and signature.outputs:
                scores = prod(signature.outputs[0].shape)
                numel[choice.first_op : choice.end_op] = scores
    return np.where(columns.forward >= 0, numel[columns.forward], numel)


def find_scores(evidence: "Evidence", numel: "Integers") -> "Integers":
    """Return the storages with as many elements as scores, made in attention."""
    columns = evidence.columns
    of_slot = evidence.of_slots(
        lambda s: (prod(tensor.shape) for tensor in (*s.inputs, *s.outputs))
    )
    is_score = columns.is_made & (of_slot == numel[columns.call]) & (of_slot > 0)
    storages = np.unique(columns.storage[is_score])
    within: Integers = storages[numel[evidence.maker[storages]] > 0]
    return within


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
            yield describe_graphs(evidence, graphs)


def describe_graphs(evidence: "Evidence", graphs: Sequence[Graph]) -> Advice:
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
