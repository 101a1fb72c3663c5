"""Gradients that nobody reads: of parameters that no optimizer steps."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.advice.parameter_names import name_by_storage, shorten
from meta_magic.trace.sequences import ModuleCalls
from meta_magic.trace.units import format_bytes, format_flops

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Flags, Integers

__all__ = ["find_unread_gradients"]

CLEARING: Final = ("zero_", "fill_", "detach", "alias")
"""Ends of the names of operators that look at no number of a gradient."""


def find_unread_gradients(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if an optimizer steps some parameters, and others have gradients.

    Gradients after which nothing was stepped yet, and those that anything else than
    autograd reads, are used.
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
    unread = [p for p in names if p in gradients and not is_read[[*gradients[p]]].any()]
    if unread:
        made = {storage for p in unread for storage in gradients[p]}
        storages = np.asarray(sorted(made), np.int64)
        yield describe(evidence, [names[p] for p in unread], storages)


def describe(
    evidence: "Evidence", names: Sequence[str], gradients: "Integers"
) -> Advice:
    """Return the advice on parameters whose gradients are not read."""
    is_dead = find_dead(evidence, gradients)
    calls = np.flatnonzero(is_dead)
    made = np.flatnonzero((evidence.maker >= 0) & is_dead[evidence.maker])
    shares = np.ones(evidence.columns.n_storages)
    shares[made] = shares[gradients] = 0
    stop = find_needed(evidence, is_dead)
    nbytes, flops = (
        int(evidence.nbytes[gradients].sum()),
        int(evidence.flops[calls].sum()),
    )
    return Advice(
        kind="gradient",
        text=f"nobody reads the gradients of {shorten(names)}, which no optimizer "
        f"steps: {format_bytes(nbytes)} and {format_flops(flops)} for nothing; "
        "requires_grad_(False) before the forward",
        lines=evidence.lines_of(calls.tolist()),
        nbytes=nbytes,
        peak_nbytes=evidence.save_by(shares, stop),
        flops=flops,
        choice="requires_grad_(False)",
    )


def find_needed(evidence: "Evidence", is_dead: "Flags") -> "Integers":
    """Return for each storage when it would be freed without dead calls.

    What backward has no use for is freed when the code lets go of it: what a module is
    given, when that returns.
    """
    columns = evidence.columns
    needed = evidence.last_call(~is_dead[columns.call]) + 1
    for call in ModuleCalls(evidence.program):
        taken = [tensor.storage_id for _, tensor in call.inputs]
        needed[taken] = np.maximum(needed[taken], call.end_op)
    is_saved = evidence.is_of("saved") & ~evidence.is_last
    return np.where(is_saved, needed, columns.n_calls)


def list_made(evidence: "Evidence", call: int) -> list[int]:
    """Return the storages of what a call returned."""
    tensors = evidence.tensors_of(call)
    made: list[int] = evidence.columns.storage[tensors][
        evidence.columns.is_made[tensors]
    ].tolist()
    return made


def find_looking(evidence: "Evidence") -> "Flags":
    """Return for each call whether it is not autograd's, and looks at numbers."""
    is_clearing = evidence.calls_of(lambda s: s.op.split(".")[1].endswith(CLEARING))
    looking: Flags = ~is_clearing & ~evidence.is_in("backward")
    return looking


def find_read(evidence: "Evidence") -> "Flags":
    """Return for each storage whether such a call reads it."""
    columns = evidence.columns
    reads = ~columns.is_made & find_looking(evidence)[columns.call]
    is_read = np.zeros(columns.n_storages, np.bool_)
    is_read[columns.storage[reads]] = True
    return is_read


def find_dead(evidence: "Evidence", gradients: "Integers") -> "Flags":
    """Return for each call whether autograd makes it for unread gradients alone."""
    columns = evidence.columns
    wanted = evidence.is_left.copy()
    wanted[gradients] = False
    is_dead = np.zeros(columns.n_calls, np.bool_)
    is_backward = evidence.is_in("backward").tolist()
    is_looking = find_looking(evidence).tolist()
    changes = columns.is_made | columns.is_written
    for call in range(columns.n_calls - 1, -1, -1):
        tensors = evidence.tensors_of(call)
        storages = columns.storage[tensors]
        if is_backward[call] and not wanted[storages[changes[tensors]]].any():
            is_dead[call] = True
        elif is_backward[call] or is_looking[call]:
            wanted[storages[~columns.is_made[tensors]]] = True
    return is_dead
