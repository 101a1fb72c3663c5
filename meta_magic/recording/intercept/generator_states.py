"""Return from ``torch.get_rng_state()`` the state that a real run would have.

Nothing is drawn while a cell runs, so the generator's state has a token, the number of
a draw. ``fork_rng`` and checkpointing only save and restore the state: a token will do.
The user's code may print or save the state: the draws are then made.
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
"""Packages that save and restore a state, and never read its bytes."""

UNKNOWN: Final = (
    "torch.get_rng_state returned a state that can be set again, but whose bytes are "
    "not the CPU's: to make the draws before it takes too much (see --value-seconds)"
)


class GeneratorStates(Replacements):
    """Moves torch's generator to the state that the CPU's has before it is returned.

    Args:
        draws: Knows the state of the generator.
        values: Computes the state.
        diagnostics: Takes a note if that takes too much.
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
                self._advance()
            return before()

        return get_rng_state

    def _advance(self) -> None:
        """Move the generator to its state as if all draws had been made."""
        missing = self._draws.find_missing(None)
        state = self._values.state_at(missing) if missing else None
        if state is not None:
            self._draws.advance_default(state)
        elif missing:
            self._diagnostics.note("draw", UNKNOWN)
            self._diagnostics.note_caveat(UNKNOWN)
