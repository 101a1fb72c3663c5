"""Return from ``generator.get_state()`` the state that a real run would have.

Nothing is drawn while a cell runs, so a generator's state only holds a token, the
number of a draw. ``fork_rng`` and checkpointing save and restore the state, and need no
more than the token. The user's code may print or save the state; then the draws are
made. A state that a cell loads from a file is on meta; ``set_state`` gets its values.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.recording.identities.generator_carryover import is_named, is_on_cpu
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.rows.draws import Draws
from meta_magic.torch_private.replaced import GENERATOR
from meta_magic.torch_private.replacing import Methods, Replacements

INNER: Final = frozenset({"torch", __name__.partition(".")[0]})
"""Packages that save and restore a state, and never read its bytes."""

GET_STATE: Final = torch.get_rng_state.__code__
HERE: Final = frozenset({__name__, Replacements.__module__})
"""Code, and modules, whose callers are asked instead."""

UNKNOWN: Final = (
    "torch.get_rng_state, or a generator's get_state, returned a state that can be set "
    "again, but whose bytes are not the CPU's: to make the draws before it takes too "
    "much (see --value-seconds)"
)


class GeneratorStates(Replacements):
    """Moves a generator to the state of the CPU's before its state is returned.

    Args:
        draws: Knows the states of generators.
        values: Computes states.
        compute: Returns the values of tensors on meta.
        diagnostics: Takes a note if the draws take too much.
    """

    def __init__(
        self,
        draws: Draws,
        values: ValueSource,
        compute: Callable[[list[Tensor], str], list[Tensor]],
        diagnostics: Diagnostics,
    ) -> None:
        super().__init__()
        self._draws = draws
        self._values = values
        self._compute = compute
        self._diagnostics = diagnostics

    def __enter__(self) -> None:
        methods: Methods = {
            "get_state": self._get,
            "set_state": self._set,
            "__reduce__": self._reduce,
            "__setstate__": self._restore,
        }
        self.replace_here(GENERATOR, methods)

    def _get(
        self, plain: Callable[[Generator], Tensor], generator: Generator
    ) -> Tensor:
        frame: Any = sys._getframe(1)
        while frame.f_code is GET_STATE or frame.f_globals.get("__name__") in HERE:
            frame = frame.f_back
        caller = str(frame.f_globals.get("__name__"))
        if caller.partition(".")[0] not in INNER:
            self._advance(generator)
        return plain(generator)

    def _set(self, plain: Callable[..., Any], generator: Generator, state: Any) -> Any:
        return plain(generator, self._make_real(state))

    def _reduce(self, plain: Callable[..., Any], generator: Generator) -> Any:
        self._advance(generator)
        return plain(generator)

    def _restore(
        self, plain: Callable[..., Any], generator: Generator, held: Any
    ) -> Any:
        return plain(generator, (*map(self._make_real, held),))

    def _make_real(self, state: Any) -> Any:
        """Return a state that is real: of a state on meta, its values."""
        if isinstance(state, Tensor) and state.is_meta:
            (state,) = self._compute([state], "the state of a generator")
        return state

    def _advance(self, generator: Generator) -> None:
        """Move a generator to the state that it has after all draws so far."""
        if is_named(generator) or not is_on_cpu(generator):
            return
        if not self._draws.settle(generator, self._values.state_at):
            self._diagnostics.note("draw", UNKNOWN)
            self._diagnostics.note_caveat(UNKNOWN)
