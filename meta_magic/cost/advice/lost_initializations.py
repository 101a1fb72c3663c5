"""Parameters that are filled with numbers, and thrown away when weights are tied."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.advice.parameter_names import shorten
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence

__all__ = ["find_lost_initializations"]


def find_lost_initializations(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each line that makes parameters which tying throws away.

    Only for the user's own modules: those of a library are not to be changed.
    """
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
            found[int(columns.place[maker]), names].append(storage)
    for (_, names), storages in found.items():
        nbytes = int(evidence.nbytes[storages].sum())
        places = evidence.places_of(evidence.maker[storages].tolist())
        yield Advice(
            kind="tying",
            text=f"{format_bytes(nbytes)} are filled and then thrown away, as "
            f"{shorten(names)} is tied to another parameter: a function of that one, "
            "such as F.linear, needs none of its own",
            lines=evidence.lines_of(evidence.maker[storages].tolist()),
            nbytes=nbytes,
            peak_nbytes=evidence.save_without(storages),
            choice="no weight of its own" if places else None,
            places=places,
        )


def find_tied(evidence: "Evidence") -> dict[int, tuple[str, ...]]:
    """Return by module number the names of its parameters that stand elsewhere too."""
    places: Counter[int] = Counter()
    named: dict[tuple[int, str], list[tuple[str, int]]] = defaultdict(list)
    for number, root in enumerate(evidence.modules):
        for node in root.walk():
            for tensor, storage in zip(node.tensors, node.storages, strict=False):
                if tensor.kind == "parameter" and storage >= 0:
                    places[storage] += 1
                    name = ".".join(filter(None, (node.fqn, tensor.name)))
                    named[number, node.fqn].append((name, storage))
    tied = {
        place: tuple(name for name, storage in held if places[storage] > 1)
        for place, held in named.items()
    }
    return {
        number: tied.get((root, fqn), ())
        for number, (root, fqn, _) in enumerate(evidence.program.modules)
        if root is not None and fqn is not None and tied.get((root, fqn))
    }
