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
    ExcludeKey,
    set_tracing_state,
    tracing_state,
)

__all__ = ["WithoutTracing", "make_fake", "trace_convolution"]

CUDNN: Final = (False, False, True, True)
"""What the tracer writes of the backends: benchmark, deterministic, enabled, tf32."""


TRACER: Final[Any] = torch._C._parse_dispatch_key("Tracer")
"""Without it the tracer cannot be stopped inside of an operator, and what a recording
asks of sizes there ends in the graph."""


class WithoutTracing:
    """Context manager in which ``torch.jit`` does not trace, and sizes are integers."""

    def __enter__(self) -> None:
        self._state = tracing_state()
        self._allowed = ExcludeKey(TRACER, False)  # noqa: FBT003  torch's own
        self._allowed.__enter__()
        set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        set_tracing_state(self._state)
        self._allowed.__exit__(None, None, None)


def trace_convolution(made: Tensor, args: Sequence[Any]) -> None:
    """Tell the tracer how a convolution's result was made.

    Torch does not trace ``convolution`` but ``_convolution``, which that calls on the
    CPU, and not on meta.
    """
    with torch.no_grad(), DisableTorchDispatch():
        traced = torch.ops.aten._convolution.default(*args, *CUDNN)
    set_value(made, value_of(traced))


def make_fake(tensor: Tensor, other: Any, device: torch.device) -> Tensor:
    """Return the fake tensor that stands for a tensor beside another fake one.

    Without it a plain tensor that a model holds is on meta to ``torch.export``.

    Args:
        tensor: The tensor, on meta.
        other: The other fake tensor.
        device: Where the fake one says that it is.
    """
    fake: Any = other.fake_mode.from_tensor(tensor, static_shapes=True)
    fake.fake_device = device
    return fake  # type: ignore[no-any-return]  # torch's own class
