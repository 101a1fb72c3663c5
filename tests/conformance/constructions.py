"""Constructions of modules that are hard to replay, one idea each."""

from tests.conformance import (
    constructed_draws,
    constructed_modules,
    constructed_values,
)

__all__ = ["CONSTRUCTIONS", "LIMITS"]

CONSTRUCTIONS = {
    **constructed_values.CONSTRUCTIONS,
    **constructed_draws.CONSTRUCTIONS,
    **constructed_modules.CONSTRUCTIONS,
}
"""Functions that build a module, by what is special about it."""

LIMITS = {
    "skip init": "what is put on meta by name counts as on the device of the cell",
    "a module on meta by name": (
        "what is put on meta by name counts as on the device of the cell"
    ),
    "the output of an lstm": "many operators on meta, one kernel on the CPU",
}
"""Those that cannot be recorded, or differ as materialize says, and why."""
