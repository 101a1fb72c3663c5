"""Numbers are drawn after an operator was asked as if it had drawn none."""

from typing import Any, Final

import torch

__all__ = ["SameDraws"]

RANDOM: Final = torch.Tag.nondeterministic_seeded


class SameDraws:
    """Context manager after which numbers are drawn as if an operator drew none."""

    def __init__(self, operator: Any) -> None:
        self._is_due = RANDOM in getattr(operator, "tags", ())
        self._state: Any = None

    def __enter__(self) -> None:
        if self._is_due:
            self._state = torch.default_generator.get_state()

    def __exit__(self, *_: object) -> None:
        if self._is_due:
            torch.default_generator.set_state(self._state)
