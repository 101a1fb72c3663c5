"""Keep what a recording does out of the graph that ``torch.jit.trace`` makes."""

from collections.abc import Callable
from typing import Any

import torch

from meta_magic.recording.torch_private import tracing_state

__all__ = ["WithoutTracing"]

# Without it, each size that the recorder reads would be an operator of the traced code.
set_tracing_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]


class WithoutTracing:
    """Context manager in which ``torch.jit`` does not trace, and sizes are integers."""

    def __enter__(self) -> None:
        self._state = tracing_state()
        set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        set_tracing_state(self._state)
