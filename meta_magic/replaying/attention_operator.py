"""The operators of fused attention, also on a device that does not have them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.replaying.call_arguments import CallArguments
from meta_magic.replaying.operators import Operator, find_function
from meta_magic.torch_private.dispatcher import math_attention

__all__ = ["HOMES", "AttentionOperator"]

HOMES: Final[Mapping[str, str]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "cpu",
    "aten._scaled_dot_product_flash_attention.default": "cuda",
    "aten._scaled_dot_product_efficient_attention.default": "cuda",
    "aten._scaled_dot_product_cudnn_attention.default": "cuda",
    "aten._scaled_dot_product_flash_attention_backward.default": "cuda",
    "aten._scaled_dot_product_efficient_attention_backward.default": "cuda",
    "aten._scaled_dot_product_cudnn_attention_backward.default": "cuda",
}
"""The device that has a kernel, by its operator."""

SEED_DTYPES: Final = (torch.int64, torch.uint64)
"""Of the first of its tensors that tells the backward how the dropout was drawn."""

MAX_SEED: Final = 1 << 31
BIAS: Final = 3
"""At which place of ``grad_input_mask`` the gradient of the mask stands."""


class AttentionOperator(Operator):
    """A fused kernel of attention; on another device than its own, the math of it."""

    def __init__(self, name: str) -> None:
        self._home = HOMES[name]
        self._fused = find_function(name)
        self._is_backward = "_backward." in name
        run = self._run_backward if self._is_backward else self._run
        self._seed = 0
        super().__init__(name, self._fused, run=run)

    def call(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; see :meth:`Operator.call`.

        Elsewhere than at home it returns its output with its other tensors empty, which
        are for its backward, but for the seed of its dropout.
        """
        returned = super().call(arguments, tensors, device, generator)
        if device.type == self._home or self._is_backward:
            return returned
        rest = [
            torch.zeros(g.shape, dtype=g.dtype, device=device)
            for g in arguments.signature.outputs[1:]
        ]
        seeds = [tensor for tensor in rest if tensor.dtype in SEED_DTYPES]
        for tensor in seeds[:1]:
            tensor.fill_(self._seed)
        return [returned, *rest]

    def _run(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.device.type == self._home:
            return self._fused(query, key, value, **options)
        has_dropout = options.get("dropout_p", 0.0) > 0
        self._seed = int(torch.randint(MAX_SEED, ())) if has_dropout else 0
        return run_math((query, key, value), options, self._seed)

    def _run_backward(self, **given: Any) -> Any:
        """Return the gradients of the math, which draws the same dropout."""
        tensors = [given["query"], given["key"], given["value"]]
        if tensors[0].device.type == self._home:
            return self._fused(**given)
        grad = given.get("grad_out", given.get("grad_out_"))
        wanted = given.get("grad_input_mask", [True] * 3)
        seed = given["philox_seed"].reshape(-1)[:1].tolist()
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            bias = given.get("attn_bias")
            if bias is not None and len(wanted) > BIAS and wanted[BIAS]:
                bias = bias.detach().requires_grad_()
                leaves.append(bias)
            out = run_math(leaves[:BIAS], {**given, "attn_bias": bias}, *seed)
            grads = torch.autograd.grad(out, leaves, grad)
        return [g for g, is_wanted in zip(grads, wanted, strict=False) if is_wanted]


def run_math(
    tensors: Sequence[Tensor], options: Mapping[str, Any], seed: int
) -> Tensor:
    """Return the output of the math of many operators.

    Args:
        tensors: Query, key and value.
        options: The kernel's other arguments.
        seed: From which its dropout is drawn.
    """
    query, key, value = tensors
    dropout_p = options.get("dropout_p", 0.0)
    mask = options.get("attn_mask", options.get("attn_bias"))
    output, weights = math_attention(
        query,
        key,
        value,
        mask if mask is not None and mask.numel() else None,
        0.0,
        options.get("is_causal", False),
        scale=options.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if dropout_p > 0:
        drawn = torch.rand(weights.shape, generator=Generator().manual_seed(seed))
        kept = (drawn >= dropout_p).to(weights.device, weights.dtype)
        n_groups = query.shape[1] // value.shape[1]
        value = value.repeat_interleave(n_groups, 1)
        output = weights * kept / (1 - dropout_p) @ value.to(weights.dtype)
    made: Tensor = output.to(query.dtype)
    return made
