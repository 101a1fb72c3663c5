"""Constructions of modules that are hard to replay, one idea each."""

from tests.conformance import constructed_draws, constructed_modules, constructed_values

CONSTRUCTIONS = {
    **constructed_values.CONSTRUCTIONS,
    **constructed_draws.CONSTRUCTIONS,
    **constructed_modules.CONSTRUCTIONS,
}
"""Functions that build a module, by what is special about it."""

LIMITS: dict[str, str] = {}
"""Those that cannot be recorded, or differ as materialize says, and why."""
