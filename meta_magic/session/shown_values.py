"""Texts of what earlier recordings left on meta, with values, where none runs."""

from collections.abc import Callable
from typing import TypeVar

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.origins import has_origins
from meta_magic.recording.intercept.shown_tensors import ShownTensors
from meta_magic.session.caches import pick_cache
from meta_magic.session.guard import Guard
from meta_magic.session.program_builder import ProgramBuilder, make_written
from meta_magic.session.values_on_demand import ValuesOnDemand
from meta_magic.trace.options import Options, ValueLimits

__all__ = ["run_with_values"]

T = TypeVar("T")


def run_with_values(
    block: Callable[[], T], limits: ValueLimits, *, has_places: bool
) -> T:
    """Run what writes texts: those of tensors on meta have values, if they take little.

    As in a recording, of which nothing else is there: all runs as it would.

    Args:
        block: Writes them.
        limits: What the value of one may take.
        has_places: Whether they say the device that a recorded cell named, not meta.
    """
    if not has_origins():
        return block()
    clock, options = Clock(), Options(limits=limits)
    write = make_written(pick_cache(options), clock, "", None)
    programs = ProgramBuilder(write, clock, options.device)
    values = ValuesOnDemand(write, clock, programs.snapshot, options)
    texts = ShownTensors(write.registry, values, None, has_places=has_places)
    try:
        return Guard((texts,)).run(block)
    finally:
        write.registry.close()
