"""Operators that a replay cannot call, or describe, by their name alone.

Some read only those tensors that their arguments say; fused attention may have no
kernel on the device of the replay; and a call whose values were assumed (``--assume``)
gives the assumed values. Read :func:`make_operator` first.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Final, cast

import torch
from torch import Generator, Tensor

from meta_magic.replaying.operators import (
    CallArguments,
    Operator,
    find_function,
    find_operator,
)
from meta_magic.torch_private.dispatcher import find_decomposition, math_attention
from meta_magic.trace.program_facts import Assumption
from meta_magic.trace.signature import Geometry, Signature, TensorArgument

HALVES: Final = frozenset({torch.float16, torch.bfloat16})

RRELU_BACKWARD: Final = "aten.rrelu_with_noise_backward.default"


class NoiseOperator(Operator):
    """RReLU, which writes its noise argument in training, and else ignores it.

    Source:
        ``rrelu_with_noise_out_cpu`` in ``Activation.cpp``, and ``RreluWithNoise.cu``.
    """

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature.op, find_function(signature.op))
        arguments = dict(signature.arguments)
        noise = arguments["noise"]
        if not arguments.get("training"):
            if isinstance(noise, TensorArgument):
                self.unread = frozenset({noise.index})
        elif signature.op != RRELU_BACKWARD:
            self.out |= {"noise"}


class ConvolutionBackward(Operator):
    """The gradients of a convolution: that of the input does not read the input.

    Nor does that of the weight read the weight. Under ``vmap`` torch asks for one at a
    time, and passes uninitialized memory for the other.

    Source: ``make_dummy`` in ``BatchRulesConvolution.cpp``.
    """

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature.op, find_function(signature.op))
        arguments = dict(signature.arguments)
        wants_input, wants_weight, _ = cast("list[bool]", arguments["output_mask"])
        is_read = {"input": wants_weight, "weight": wants_input}
        self.unread = frozenset(
            value.index
            for name, value in arguments.items()
            if isinstance(value, TensorArgument) and not is_read.get(name, True)
        )


READ_BY_ARGUMENTS: Final[Mapping[str, Callable[[Signature], Operator]]] = {
    "aten.rrelu_with_noise.default": NoiseOperator,
    "aten.rrelu_with_noise_.default": NoiseOperator,
    RRELU_BACKWARD: NoiseOperator,
    "aten.convolution_backward.default": ConvolutionBackward,
}
"""Operators whose arguments say which tensors they read."""


def make_operator(signature: Signature) -> Operator:
    """Return the operator of a signature."""
    if signature.op in READ_BY_ARGUMENTS:
        return READ_BY_ARGUMENTS[signature.op](signature)
    if signature.op in DEVICE_BY_KERNEL:
        return AttentionOperator(signature)
    inputs = signature.inputs
    if signature.op in NORMS and not HALVES.isdisjoint(g.dtype for g in inputs):
        is_backward = "_backward." in signature.op
        wanted = () if is_backward else signature.outputs
        function = find_function(signature.op)
        return Operator(signature.op, function, partial(run_norm, function, wanted))
    if signature.op in ON_CUDA_ALONE:
        function = find_function(signature.op)
        return Operator(signature.op, function, partial(run_anywhere, function))
    return find_operator(signature.op)


ON_CUDA_ALONE: Final = frozenset(
    {"aten.cudnn_batch_norm.default", "aten.cudnn_batch_norm_backward.default"}
    | {"aten._fused_rms_norm_backward.default"}
)
"""Operators without a kernel of the CPU, but with a decomposition."""


def run_anywhere(operator: Any, **given: Any) -> Any:
    """Call an operator of ``ON_CUDA_ALONE``: on other devices its decomposition."""
    is_there = any(isinstance(v, Tensor) and v.is_cuda for v in given.values())
    run = operator if is_there else find_decomposition(operator)
    return run(**given)


NORMS: Final = frozenset(
    f"aten.{name}{end}"
    for name in ("native_batch_norm", "native_layer_norm")
    for end in (".default", "_backward.default")
)
"""Norms whose statistics are float32 on CUDA; on the CPU they are as the parameters."""

STATISTICS: Final = frozenset({"mean", "rstd", "save_mean", "save_invstd"})


def run_norm(operator: Any, wanted: Sequence[Geometry], **given: Any) -> Any:
    """Call an operator of ``NORMS`` with the statistics of any device."""
    like = given["input"] if given.get("weight") is None else given["weight"]
    if not like.is_cuda:
        held = given.items()
        given = {n: v.to(like.dtype) if n in STATISTICS else v for n, v in held}
    returned = operator(**given)
    if wanted and returned[1].shape != wanted[1].shape:
        # In eval mode the CPU returns no statistics; these are torch's decomposition's.
        deviation = (given["running_var"] + given["eps"]).rsqrt()
        returned = returned[0], given["running_mean"].clone(), deviation
    return [
        made if made is None or not wanted else made.to(wanted[index].dtype)
        for index, made in enumerate(returned)
    ]


COPY: Final = "aten._to_copy.default"
NONZERO: Final = "aten.nonzero.default"
MASKS: Final = (torch.bool, torch.uint8)


class AssumedOperator(Operator):
    """A call whose values or result size were assumed (``--assume nonzero=0.5``).

    It runs with a made-up mask that has the assumed count of true elements, evenly
    spread: the real mask need not be known. A copy to the CPU returns the assumed
    numbers.
    """

    def __init__(self, signature: Signature, assumption: Assumption) -> None:
        super().__init__(signature.op, find_function(signature.op))
        self._assumption = assumption
        self._count = assumption.n_true
        self._is_copy = signature.op == COPY
        self.unread = frozenset(
            index
            for index, geometry in enumerate(signature.inputs)
            if signature.op in (NONZERO, COPY) or (index and geometry.dtype in MASKS)
        )

    def call(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; see :meth:`Operator.call`."""
        if self._is_copy:
            (made,) = arguments.signature.outputs
            return fill(self._assumption, made.shape, made.dtype)
        given = [
            spread(self._count, tensor) if index in self.unread else tensor
            for index, tensor in enumerate(tensors)
        ]
        return super().call(arguments, given, device, generator)


def fill(assumption: Assumption, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the assumed numbers, on the CPU."""
    if assumption.value is not None:
        return torch.full(tuple(shape), assumption.value, dtype=dtype, device="cpu")
    numel = prod(shape)
    ends = torch.arange(numel + 1, device="cpu") * assumption.n_true // max(1, numel)
    return ends.diff().view(tuple(shape)).to(dtype)


def spread(count: int, like: Tensor) -> Tensor:
    """Return a mask of a tensor's shape with ``count`` true elements."""
    numbers, n = torch.arange(like.numel(), device=like.device), max(1, like.numel())
    # True wherever the running count of true elements reaches the next whole number.
    flat = (numbers + 1) * count // n > numbers * count // n
    return flat.view(like.shape)


DEVICE_BY_KERNEL: Final[Mapping[str, str]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "cpu",
    "aten._scaled_dot_product_flash_attention.default": "cuda",
    "aten._scaled_dot_product_efficient_attention.default": "cuda",
    "aten._scaled_dot_product_cudnn_attention.default": "cuda",
    "aten._scaled_dot_product_flash_attention_backward.default": "cuda",
    "aten._scaled_dot_product_efficient_attention_backward.default": "cuda",
    "aten._scaled_dot_product_cudnn_attention_backward.default": "cuda",
}
"""The device that has the kernel of an operator."""

SEED_DTYPES: Final = (torch.int64, torch.uint64)
"""Dtypes of the output that hands the seed of the dropout to the backward."""

MAX_SEED: Final = 1 << 31
BIAS: Final = 3  # index of the mask's gradient in ``grad_input_mask``


class AttentionOperator(Operator):
    """A fused kernel of attention; on other devices than its own, the same math."""

    def __init__(self, signature: Signature) -> None:
        name = signature.op
        self._home = DEVICE_BY_KERNEL[name]
        self._fused = find_function(name)
        self._is_backward = "_backward." in name
        run = self._run_backward if self._is_backward else self._run
        self._seed = 0
        super().__init__(name, self._fused, run=run)
        self.is_random &= bool(dict(signature.arguments).get("dropout_p"))

    def call(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; see :meth:`Operator.call`.

        On another device the further outputs, which are for the backward, are zeros;
        only the seed of the dropout is real.
        """
        returned = super().call(arguments, tensors, device, generator)
        if device.type == self._home or self._is_backward:
            return returned
        others = arguments.signature.outputs[1:]
        rest = [torch.zeros(g.shape, dtype=g.dtype, device=device) for g in others]
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
        """Return the gradients of the math, with the dropout of the forward."""
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


def run_math(tensors: Sequence[Tensor], options: Mapping[str, Any], seed: int) -> Any:
    """Return the output of attention, computed by many operators."""
    query, key, value = tensors
    dropout_p = options.get("dropout_p", 0.0)
    mask = options.get("attn_mask", options.get("attn_bias"))
    mask = mask if mask is not None and mask.numel() else None
    given = query, key, value, mask, 0.0, options.get("is_causal", False)
    scale, is_grouped = options.get("scale"), query.shape[1] != key.shape[1]
    output, weights = math_attention(*given, scale=scale, enable_gqa=is_grouped)
    if dropout_p > 0:
        drawn = torch.rand(weights.shape, generator=Generator().manual_seed(seed))
        kept = (drawn >= dropout_p).to(weights.device, weights.dtype)
        n_groups = query.shape[1] // value.shape[1]
        value = value.repeat_interleave(n_groups, 1)
        output = weights * kept / (1 - dropout_p) @ value.to(weights.dtype)
    return output.to(query.dtype)
