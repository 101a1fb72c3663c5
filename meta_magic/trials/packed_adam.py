"""An Adam whose states take 8 bits a number: what it needs, not what it computes."""

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["PackedAdam"]

BLOCK: Final = 256
"""Numbers that share a scale."""

LEAST: Final = 4096
"""Parameters that have fewer numbers keep states of 32 bits."""


class PackedAdam(Optimizer):
    """Adam with states of 8 bits, quantized by blocks, in one kernel a parameter.

    It has the memory of the real one, not its values: a trial asks for no others.

    Source:
        bitsandbytes' ``Adam8bit``: two states of a byte a number, each with a scale
        of 32 bits for 256 of them, and of 32 bits below 4,096 numbers.
    """

    def __init__(self, params: Iterable[Any], *, is_paged: bool = False) -> None:
        super().__init__(params, {})
        self._is_paged = is_paged

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self.state[parameter] = self._make_state(parameter)
                    parameter.sub_(parameter.grad)
        return loss

    def _make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        is_packed = parameter.numel() >= LEAST
        dtype = torch.uint8 if is_packed else torch.float32
        sizes = {"exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}
        state = {name: self._make(parameter, n, dtype) for name, n in sizes.items()}
        for name, n in sizes.items() if is_packed else ():
            scales = self._make(parameter, -(-n // BLOCK), torch.float32)
            state[f"scales of {name}"] = scales
        return state

    def _make(self, parameter: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        if self._is_paged:  # on the CPU, as what no device is named for
            return torch.zeros(n, dtype=dtype)
        return parameter.new_zeros(n, dtype=dtype)
