"""What torch does on one CPU, or in one version, and not in another: it is asked.

A tiny call runs for real, once a process, when first it matters, and is looked at. What
nobody can ask stands in a table by version beside what it is about.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.snapshot import RealTorch

__all__ = [
    "adds_batch_to_attention",
    "fills_with_numbers",
    "find_refusal_of_pooling",
    "runs_lstm_by_onednn",
]


class Listing:
    """Notes names of operators; a mixin, so that torch does not import dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run an operator."""
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class ListingMode(Listing, TorchDispatchMode):
    """The mode that a call is run under."""


def list_operators(call: Callable[[torch.Tensor], object]) -> list[str]:
    """Return the operators that a call of one zero runs on the CPU, in order."""
    with RealTorch():
        zero = torch.zeros(1, 1, 1, device="cpu")
        listing = ListingMode()
        with listing:
            call(zero)
    return listing.names


@cache
def fills_with_numbers() -> bool:
    """Whether a number is written at an index as it is; a tensor is made of it else."""
    names = list_operators(lambda zero: zero.__setitem__(0, 1.0))
    return "aten.fill_.Scalar" in names


@cache
def adds_batch_to_attention() -> bool:
    """Whether attention of three dimensions is that of a batch of one; math else."""
    names = list_operators(lambda z: scaled_dot_product_attention(z, z, z))
    return names[0] == "aten.unsqueeze.default"


@cache
def runs_lstm_by_onednn(dtype: torch.dtype, *, has_gradients: bool) -> bool:
    """Whether oneDNN runs an LSTM of a dtype, which depends on the processor, too."""

    def call(zero: torch.Tensor) -> object:
        state, weight = zero.to(dtype), zero.new_zeros(4, 1, dtype=dtype)
        with torch.set_grad_enabled(has_gradients):
            options = False, 1, 0.0, False, False, False
            return torch.lstm(state, (state, state), (weight, weight), *options)

    return "aten.mkldnn_rnn_layer.default" in list_operators(call)


@cache
def find_refusal_of_pooling(dtype: torch.dtype) -> str | None:
    """Return what ``max_pool1d`` says of a dtype that it refuses without a gradient."""
    with RealTorch():
        try:
            torch.max_pool1d(torch.zeros(1, 1, 1, dtype=dtype, device="cpu"), 1)
        except NotImplementedError as error:
            return str(error)
    return None
