"""Keep ``torch.compile`` usable after a recording.

A dispatch mode makes dynamo give up on the code it meets and remember that for the rest
of the process (fixed after torch 2.13). Under ``force_eager`` it does not even look.
"""

import sys
from typing import Any

import torch

__all__ = ["EagerStance"]


class EagerStance:
    """Context manager in which compiled functions run eagerly and are recorded."""

    def __init__(self) -> None:
        self._stance: Any = None

    def __enter__(self) -> None:
        # Importing dynamo takes a second: done only if somebody else did it already.
        if "torch._dynamo" in sys.modules:
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()

    def __exit__(self, *exception: object) -> None:
        if self._stance is not None:
            stance, self._stance = self._stance, None
            stance.__exit__(*exception)
        elif "torch._dynamo" in sys.modules:
            # Imported meanwhile: whatever it remembers, it learnt under our mode.
            torch.compiler.reset()
