"""Keep what a recording does out of the graph that ``torch.jit.trace`` makes."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

# Without these two what a convolution makes is a constant to the tracer.
from torch._C import _get_value_trace as value_of  # type: ignore[attr-defined]  # not in its stub
from torch._C import _set_value_trace as set_value  # type: ignore[attr-defined]  # as above

from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    set_tracing_state,
    tracing_state,
)

__all__ = ["WithoutTracing", "trace_convolution"]

CUDNN: Final = (False, False, True, True)
"""What the tracer writes of the backends: benchmark, deterministic, enabled, tf32."""


class WithoutTracing:
    """Context manager in which ``torch.jit`` does not trace, and sizes are integers."""

    def __enter__(self) -> None:
        self._state = tracing_state()
        set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        set_tracing_state(self._state)


def trace_convolution(made: Tensor, args: Sequence[Any]) -> None:
    """Tell the tracer how a convolution's result was made.

    Torch does not trace ``convolution`` but ``_convolution``, which that calls on the
    CPU, and not on meta.
    """
    with torch.no_grad(), DisableTorchDispatch():
        traced = torch.ops.aten._convolution.default(*args, *CUDNN)
    set_value(made, value_of(traced))
