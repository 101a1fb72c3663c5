"""Choose what becomes real with a module, of all that is used with it.

What cannot be replayed, or would take far longer than the module, stays on meta and
stands in the report by name. Read ``choose_companions`` first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from meta_magic.errors import MaterializeError
from meta_magic.materializing.companions import (
    find_companions,
    find_forgettable,
)
from meta_magic.materializing.constructed import find_made_by_use
from meta_magic.materializing.fills.protocol import Task
from meta_magic.materializing.forecast import format_seconds
from meta_magic.materializing.preparation import Preparation
from meta_magic.materializing.targets import Held, Target, address_of, check_makeable
from meta_magic.materializing.variables import Variables

__all__ = ["choose_companions"]

PATIENCE: Final = 10.0
"""Seconds that gradients and what hooks hold may add."""

DEAR: Final = ("gradient", "attribute")

MAX_TRIES: Final = 8

Prepare: TypeAlias = Callable[[Task], Preparation]


def choose_companions(
    task: Task, prepare: Prepare, *, is_trained: bool, is_cast: bool
) -> Preparation:
    """Return how to make a task's tensors real, and as much of what goes with them.

    Args:
        task: What was asked for.
        prepare: Returns how to do a task.
        is_trained: Whether its tensors will hold what they do after the cell, training
            included: else the gradients, and what steps left in optimizers, are not
            of these values, and are dropped.
        is_cast: Whether its tensors are cast.

    Raises:
        MaterializeError: What was asked for cannot be made real.
    """
    is_lenient = isinstance(task.root, Variables)
    found = find_companions(task.held, task.modules, is_cast=is_cast)
    if not is_trained:
        found = [place for place in found if place.kind != "gradient"]
        made = find_made_by_use(find_forgettable(found), task.program)
        found = [place for place in found if place not in made]
        task = replace(task, forgotten=made)
    optional = [*task.held, *found] if is_lenient else found
    task = replace(task, held=[] if is_lenient else task.held)
    prepared = prepare_with(task, optional, prepare)
    own = {address_of(place.tensor) for place in task.held}
    dear = [h for h in found if h.kind in DEAR and address_of(h.tensor) not in own]
    if is_lenient or not dear:
        return prepared
    return spare(prepared, dear, prepare)


def prepare_with(task: Task, optional: Sequence[Held], prepare: Prepare) -> Preparation:
    """Return how to do a task with what of the optional tensors can be made real."""
    left: list[tuple[Held, str]] = []

    def leave(places: Sequence[Held], error: MaterializeError) -> list[Held]:
        gone = {id(place.tensor) for place in places}
        left.extend((place, str(error)) for place in places)
        return [place for place in optional if id(place.tensor) not in gone]

    for place in optional:
        try:
            if place.tensor.is_meta:
                check_makeable(place)
        except MaterializeError as error:
            optional = leave([place], error)
    for n_tried in range(MAX_TRIES):
        try:
            held = [*task.held, *optional]
            kept = [pair for pair in left if pair[0].kind != "gradient"]
            notes = [f"{h.name}: {why}" for h, why in left if h.kind == "gradient"]
            return prepare(replace(task, held=held, left=kept, notes=notes))
        except MaterializeError as error:
            is_last = n_tried == MAX_TRIES - 2
            at_fault = find_at_fault(error, task.held, optional)
            if not optional or at_fault == []:
                raise
            optional = leave(at_fault or optional if not is_last else optional, error)
    raise AssertionError


def find_at_fault(
    error: MaterializeError, wanted: Sequence[Held], optional: Sequence[Held]
) -> list[Held] | None:
    """Return the optional tensors that cannot be made real; None if nobody knows.

    None of them where what is wanted cannot.
    """
    if not isinstance(error.target, Target):
        return None
    ids = {id(tensor) for tensor in error.target.tensors}
    if any(id(place.tensor) in ids for place in wanted):
        return []
    return [place for place in optional if id(place.tensor) in ids]


def spare(prepared: Preparation, dear: Sequence[Held], prepare: Prepare) -> Preparation:
    """Return how to do it without what does not fit, or takes long, if that is dear."""
    seconds, fits = prepared.forecast.seconds, prepared.fits
    if fits and seconds < PATIENCE:
        return prepared
    task, gone = prepared.task, {id(place.tensor) for place in dear}
    held = [place for place in task.held if id(place.tensor) not in gone]
    lean = prepare(replace(task, held=held, notes=()))
    added = seconds - lean.forecast.seconds
    if added < PATIENCE and (fits or not lean.fits):
        return prepared
    why = f"that takes {format_seconds(added)} more" if fits else "that does not fit"
    left = [(place, why) for place in dear if place.kind != "gradient"]
    notes = [f"gradients were left out: {why}"] if len(left) < len(dear) else []
    task = replace(
        lean.task, left=[*task.left, *left], notes=[*lean.task.notes, *notes]
    )
    return replace(lean, task=task)
