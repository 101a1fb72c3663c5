"""All that stands for devices that are not there, while a recording runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.planned.cuda import PlannedCuda
from meta_magic.recording.intercept.planned.default_devices import DefaultDevices
from meta_magic.recording.intercept.planned.fast_paths import FastPaths
from meta_magic.recording.intercept.planned.generators import PlannedGenerators
from meta_magic.recording.intercept.planned.plan_here import PlanHere
from meta_magic.recording.intercept.planned.seeds import SeededDevices
from meta_magic.recording.intercept.planned.tensor_types import PlannedTypes
from meta_magic.recording.intercept.planned.training import Compute, PlannedTraining
from meta_magic.recording.rows.draws import Draws

__all__ = ["stand_in_for"]


def stand_in_for(
    plan: DevicePlan,
    note: Callable[[str, str], None],
    draws: Draws,
    compute: Compute,
) -> tuple[AbstractContextManager[Any], ...]:
    """Return the context managers that replace what would ask a device.

    Args:
        plan: Knows where the code wants what.
        note: Takes the kind and the text of a note on the line that runs now.
        draws: Knows the generators of devices that are not there.
        compute: Returns what tensors hold.
    """
    return (
        PlanHere(plan),
        PlannedCuda(plan, note, draws),
        SeededDevices(plan, draws),
        PlannedGenerators(plan),
        PlannedTypes(plan),
        PlannedTraining(plan, note, compute),
        DefaultDevices(plan, note),
        FastPaths(plan, note),
    )
