"""The operators of fused attention, also on a device that does not have them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.replaying.operators import Operator, find_function
from meta_magic.torch_private.attention_operators import math_attention
from meta_magic.trace.signature import Signature

__all__ = ["HOMES", "AttentionOperator"]

HOMES: Final[Mapping[str, str]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "cpu",
    "aten._scaled_dot_product_flash_attention.default": "cuda",
    "aten._scaled_dot_product_efficient_attention.default": "cuda",
    "aten._scaled_dot_product_cudnn_attention.default": "cuda",
}
"""The device that has a kernel, by its operator."""


class AttentionOperator(Operator):
    """A fused kernel of attention; on another device than its own, the math of it."""

    def __init__(self, name: str) -> None:
        self._home = HOMES[name]
        self._fused = find_function(name)
        super().__init__(name, self._fused, run=self._run)

    def call(
        self,
        signature: Signature,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; see :meth:`Operator.call`.

        Elsewhere than at home it returns its output alone with its other tensors, which
        are for its own backward, empty.
        """
        returned = super().call(signature, tensors, device, generator)
        if device.type == self._home:
            return returned
        rest = [
            torch.zeros(g.shape, dtype=g.dtype, device=device)
            for g in signature.outputs[1:]
        ]
        return [returned, *rest]

    def _run(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.device.type == self._home:
            return self._fused(query, key, value, **options)
        mask = options.get("attn_mask", options.get("attn_bias"))
        return math_attention(
            query,
            key,
            value,
            mask,
            options.get("dropout_p", 0.0),
            options.get("is_causal", False),
            scale=options.get("scale"),
            enable_gqa=query.shape[1] != key.shape[1],
        )[0]
