"""Parameters without gradient beside others of the same model that have one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.advice.parameter_names import name_by_storage, shorten
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.trace.modules import ModuleNode

__all__ = ["find_missing_gradients"]


def find_missing_gradients(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each model that was differentiated in part.

    What an optimizer wrote had a gradient, whoever put it there. What is used and gets
    none is a mistake where an optimizer is to train it; what is not used, where a
    module was called that holds it.
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
    """Return the storages of what is in modules that were called."""
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
    """Return the advice on parameters that nothing reads."""
    nbytes = int(evidence.nbytes[unused].sum())
    makers = makers_of(evidence, unused)
    places = evidence.places_of(makers)
    return Advice(
        kind="no gradient",
        text=f"no forward reads {shorten([names[s] for s in unused])} "
        f"({format_bytes(nbytes)}): they get no gradient, and are not trained",
        lines=evidence.lines_of(makers),
        nbytes=nbytes,
        peak_nbytes=evidence.save_without(unused),
        choice="none of them" if places else None,
        places=places,
    )


def makers_of(evidence: "Evidence", storages: list[int]) -> list[int]:
    """Return the calls that made storages, of those that any made."""
    makers = evidence.maker[np.asarray(storages, np.int64)]
    made: list[int] = makers[makers >= 0].tolist()
    return made
