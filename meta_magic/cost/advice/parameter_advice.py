"""Advice on parameters: without gradient, with unread gradients, filled in vain.

Read the three ``find_*`` functions that yield advice: ``find_missing_gradients``,
``find_unread_gradients`` and ``find_lost_initializations``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.evidence import Advice
from meta_magic.trace.calls import ModuleCalls
from meta_magic.trace.modules import walk_tensors
from meta_magic.trace.units import format_bytes, format_flops

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Flags, Integers
    from meta_magic.trace.modules import ModuleNode

MAX_NAMED: Final = 3
"""Names that a sentence lists before it counts the others."""


def name_by_storage(roots: "Iterable[ModuleNode]") -> dict[int, str]:
    """Return the first name of each parameter that requires gradients, by storage."""
    names: dict[int, str] = {}
    for name, tensor, storage in walk_tensors(roots):
        is_trained = tensor.kind == "parameter" and tensor.requires_grad
        if is_trained and storage >= 0 and not tensor.is_lazy:
            names.setdefault(storage, name)
    return names


def shorten(names: Sequence[str]) -> str:
    """Return names as part of a sentence, of many only the first ones."""
    n_more = len(names) - MAX_NAMED
    if n_more <= 1:
        return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
    return f"{', '.join(names[:MAX_NAMED])} and {n_more:,} more"


def find_missing_gradients(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each model of which only some parameters got a gradient.

    A parameter that an optimizer wrote had one. A parameter that is read and gets none
    is a mistake if an optimizer has it; one that is not read, if its module was called.
    """
    columns, facts = evidence.columns, evidence.program.facts
    have = {storage for _, storage in facts.accumulated}
    is_stepped = columns.is_written & evidence.is_in("optimizer")[columns.call]
    have.update(columns.storage[is_stepped].tolist())
    reads = ~columns.is_made & evidence.is_in("forward", "other")[columns.call]
    read = {*columns.storage[reads].tolist()}
    for root in evidence.modules:
        names = name_by_storage([root])
        missing = [storage for storage in names if storage not in have]
        if len(missing) == len(names):
            continue
        called = find_called(root)
        unused = [s for s in missing if s not in read and s in called]
        if unused:
            yield describe_unused(evidence, unused, names)
        cut_off = [s for s in missing if s in read and s in facts.optimized]
        if cut_off:
            yield Advice(
                kind="no gradient",
                text=f"{shorten([names[s] for s in cut_off])} are used, and no "
                "gradient reaches them: requires_grad_(False), if that is meant",
                lines=evidence.lines_of(makers_of(evidence, cut_off)),
            )


def find_called(root: "ModuleNode") -> set[int]:
    """Return the storages of modules that were called, and of their submodules."""
    called = set[int]()
    nodes = [(root, False)]
    while nodes:
        node, is_called = nodes.pop()
        is_called |= node.n_calls > 0
        if is_called:
            called.update(node.storages)
        nodes += [(child, is_called) for child in node.children]
    return called


def describe_unused(
    evidence: "Evidence", unused: list[int], names: dict[int, str]
) -> Advice:
    """Return the advice on parameters that no call reads."""
    nbytes = int(evidence.nbytes[unused].sum())
    makers = makers_of(evidence, unused)
    call_sites = evidence.call_sites_of(makers)
    return Advice(
        kind="no gradient",
        text=f"no forward reads {shorten([names[s] for s in unused])} "
        f"({format_bytes(nbytes)}): they get no gradient, and are not trained",
        lines=evidence.lines_of(makers),
        nbytes=nbytes,
        peak_nbytes=evidence.save_without(unused),
        choice="none of them" if call_sites else None,
        call_sites=call_sites,
    )


def makers_of(evidence: "Evidence", storages: list[int]) -> list[int]:
    """Return the calls that made storages, where there is one."""
    makers = evidence.maker[np.asarray(storages, np.int64)]
    made: list[int] = makers[makers >= 0].tolist()
    return made


CLEARING: Final = ("zero_", "fill_", "detach", "alias")
"""Ends of the names of operators that do not read the numbers of a gradient."""


def find_unread_gradients(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if gradients are computed of parameters that no optimizer steps.

    Gradients that no step followed, or that other calls than autograd's read, count.
    """
    facts = evidence.program.facts
    steps = np.flatnonzero(evidence.is_in("optimizer"))
    if not facts.optimized or not len(steps):
        return
    names = name_by_storage(evidence.modules)
    parameters = names.keys() - {*facts.optimized}
    gradients = defaultdict(set)  # by parameter
    for call, parameter in facts.accumulated:
        if parameter in parameters and call < steps[-1]:
            gradients[parameter].update(list_made(evidence, call))
    is_read = find_read(evidence)
    loose = find_loose(evidence)
    kept = [p for p in names if p in gradients and p not in loose]
    unread = [p for p in kept if not is_read[[*gradients[p]]].any()]
    if unread:
        made = {storage for p in unread for storage in gradients[p]}
        storages = np.asarray(sorted(made), np.int64)
        yield describe(evidence, [names[p] for p in unread], storages)


def find_loose(evidence: "Evidence") -> set[int]:
    """Return the parameters of layers in a plain container of a module.

    They are to be trained, and the note ``unregistered`` says why they are not.
    """
    names = {root.name for root in evidence.modules if root.name}
    return {
        storage
        for root in evidence.modules
        if root.name.endswith("]")
        and any(root.name.startswith(f"{name}.") for name in names)
        for storage in name_by_storage([root])
    }


def describe(
    evidence: "Evidence", names: Sequence[str], gradients: "Integers"
) -> Advice:
    """Return the advice on parameters whose gradients are not read."""
    is_dead = find_dead_calls(evidence, gradients)
    calls = np.flatnonzero(is_dead)
    made = np.flatnonzero((evidence.maker >= 0) & is_dead[evidence.maker])
    shares = np.ones(evidence.columns.n_storages)
    shares[made] = shares[gradients] = 0
    stop = find_needed(evidence, is_dead)
    nbytes = int(evidence.nbytes[gradients].sum())
    flops = int(evidence.flops[calls].sum())
    return Advice(
        kind="gradient",
        text=f"no code reads the gradients of {shorten(names)}, which no optimizer "
        f"steps: they cost {format_bytes(nbytes)} and {format_flops(flops)}; use "
        "requires_grad_(False) before the forward",
        lines=evidence.lines_of(calls.tolist()),
        nbytes=nbytes,
        peak_nbytes=evidence.save_by(shares, stop),
        flops=flops,
        choice="requires_grad_(False)",
    )


def find_needed(evidence: "Evidence", is_dead: "Flags") -> "Integers":
    """Return for each storage the call before which it is freed without dead calls.

    A storage that backward does not need is freed when the code drops it: the input of
    a module when the module returns.
    """
    columns = evidence.columns
    needed = evidence.last_call(~is_dead[columns.call]) + 1
    for call in ModuleCalls(evidence.program):
        taken = [tensor.storage_id for _, tensor in call.inputs]
        needed[taken] = np.maximum(needed[taken], call.end_op)
    is_saved = evidence.is_of("saved") & ~evidence.is_last
    return np.where(is_saved, needed, columns.n_calls)


def list_made(evidence: "Evidence", call: int) -> list[int]:
    """Return the storages that a call returned."""
    columns, tensors = evidence.columns, evidence.tensors_of(call)
    made: list[int] = columns.storage[tensors][columns.is_made[tensors]].tolist()
    return made


def find_readers(evidence: "Evidence") -> "Flags":
    """Return for each call whether it reads numbers, and is not autograd's."""
    is_clearing = evidence.calls_of(lambda s: s.op.split(".")[1].endswith(CLEARING))
    looking: Flags = ~is_clearing & ~evidence.is_in("backward")
    return looking


def find_read(evidence: "Evidence") -> "Flags":
    """Return for each storage whether such a call reads it."""
    columns = evidence.columns
    reads = ~columns.is_made & find_readers(evidence)[columns.call]
    is_read = np.zeros(columns.n_storages, np.bool_)
    is_read[columns.storage[reads]] = True
    return is_read


def find_dead_calls(evidence: "Evidence", gradients: "Integers") -> "Flags":
    """Return for each call whether autograd makes it for unread gradients alone."""
    columns = evidence.columns
    wanted = evidence.is_left.copy()
    wanted[gradients] = False
    is_dead = np.zeros(columns.n_calls, np.bool_)
    is_backward = evidence.is_in("backward").tolist()
    is_looking = find_readers(evidence).tolist()
    changes = columns.is_made | columns.is_written
    for call in range(columns.n_calls - 1, -1, -1):
        tensors = evidence.tensors_of(call)
        storages = columns.storage[tensors]
        if is_backward[call] and not wanted[storages[changes[tensors]]].any():
            is_dead[call] = True
        elif is_backward[call] or is_looking[call]:
            wanted[storages[~columns.is_made[tensors]]] = True
    return is_dead


def find_lost_initializations(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for lines of the user's modules that fill what tying drops."""
    tied = find_tied(evidence)
    if not tied:
        return
    columns = evidence.columns
    found = defaultdict(list)
    dead = np.asarray(evidence.program.facts.parameters, np.int64)
    dead = dead[~evidence.is_left[dead] & (evidence.maker[dead] >= 0)]
    is_init = evidence.is_in("init")
    used = evidence.last_call(~is_init[columns.call])
    is_filled = evidence.last_call(columns.is_written) >= 0
    for storage in dead[(used[dead] < 0) & is_filled[dead]].tolist():
        maker = int(evidence.maker[storage])
        names = tied.get(int(columns.module[maker]), ())
        if names and evidence.is_own[maker] and is_init[maker]:
            found[int(columns.call_site[maker]), names].append(storage)
    for (_, names), storages in found.items():
        nbytes = int(evidence.nbytes[storages].sum())
        call_sites = evidence.call_sites_of(evidence.maker[storages].tolist())
        yield Advice(
            kind="tying",
            text=f"{format_bytes(nbytes)} are filled and then thrown away, as "
            f"{shorten(names)} is tied to another parameter: call a function with that "
            "parameter, such as F.linear, instead of a module with its own",
            lines=evidence.lines_of(evidence.maker[storages].tolist()),
            nbytes=nbytes,
            peak_nbytes=evidence.save_without(storages),
            choice="no weight of its own" if call_sites else None,
            call_sites=call_sites,
        )


def find_tied(evidence: "Evidence") -> dict[int, tuple[str, ...]]:
    """Return by module number the names of its parameters that other names share."""
    n_held: Counter[int] = Counter()
    named: dict[tuple[int, str], list[tuple[str, int]]] = defaultdict(list)
    for number, root in enumerate(evidence.modules):
        for node in root.walk():
            for tensor, storage in zip(node.tensors, node.storages, strict=False):
                if tensor.kind == "parameter" and storage >= 0:
                    n_held[storage] += 1
                    name = ".".join(filter(None, (node.fqn, tensor.name)))
                    named[number, node.fqn].append((name, storage))
    tied = {
        site: tuple(name for name, storage in held if n_held[storage] > 1)
        for site, held in named.items()
    }
    return {
        number: tied.get((root, fqn), ())
        for number, (root, fqn, _) in enumerate(evidence.program.modules)
        if root is not None and fqn is not None and tied.get((root, fqn))
    }
