"""Answer ``torch.get_rng_state()`` with the state that the CPU's generator has.

Nothing is drawn while a cell runs, so the generator's state names a draw instead of
being the state after it. Saved and set again, as ``fork_rng`` and checkpointing do,
such a state is as good as the real one. The user's own code may print or save it.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Final

from torch import Tensor

from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.rows.draws import Draws
from meta_magic.torch_private.replaced import GET_STATE
from meta_magic.torch_private.replacing import Replacements

__all__ = ["GeneratorStates"]

INNER: Final = frozenset({"torch", __name__.partition(".")[0]})
"""Packages that save a state to set it again, and read none of its bytes."""

UNKNOWN: Final = (
    "torch.get_rng_state returned a state that can be set again, but whose bytes are "
    "not the CPU's: to make the draws before it takes too much (see --value-seconds)"
)


class GeneratorStates(Replacements):
    """Moves torch's generator to the state that the CPU's has before it is returned.

    Args:
        draws: Knows the state of the generator.
        values: Computes the state there.
        diagnostics: Takes a note where that takes too much.
    """

    def __init__(
        self, draws: Draws, values: ValueSource, diagnostics: Diagnostics
    ) -> None:
        super().__init__()
        self._draws = draws
        self._values = values
        self._diagnostics = diagnostics

    def __enter__(self) -> None:
        for function in GET_STATE:
            self.wrap(function, self._make)

    def _make(self, before: Callable[[], Tensor]) -> Callable[[], Tensor]:
        @wraps(before)
        def get_rng_state() -> Tensor:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller.partition(".")[0] not in INNER:
                self._catch_up()
            return before()

        return get_rng_state

    def _catch_up(self) -> None:
        """Move the generator to its state as if all draws had been made."""
        missing = self._draws.find_missing(None)
        state = self._values.state_at(missing) if missing else None
        if state is not None:
            self._draws.catch_up(state)
        elif missing:
            self._diagnostics.note("draw", UNKNOWN)
            self._diagnostics.note_caveat(UNKNOWN)
