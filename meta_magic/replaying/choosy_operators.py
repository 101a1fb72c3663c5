"""Operators whose arguments say which of their tensors they read."""

from collections.abc import Callable, Mapping
from typing import Final, cast

from meta_magic.replaying.attention_operator import HOMES, AttentionOperator
from meta_magic.replaying.operators import Operator, find_function, find_operator
from meta_magic.trace.signature import Signature, TensorArgument

__all__ = ["make_operator"]

RRELU_BACKWARD: Final = "aten.rrelu_with_noise_backward.default"


class NoiseOperator(Operator):
    """An operator that fills its noise in training, and else leaves it as it is.

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
    """The gradients of a convolution: that of the input reads none of it.

    Nor does that of the weight read the weight. Under ``vmap`` torch asks for one at a
    time, and makes memory without content for the other.

    Source:
        ``make_dummy`` in ``BatchRulesConvolution.cpp``.
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


CHOOSY: Final[Mapping[str, Callable[[Signature], Operator]]] = {
    "aten.rrelu_with_noise.default": NoiseOperator,
    "aten.rrelu_with_noise_.default": NoiseOperator,
    RRELU_BACKWARD: NoiseOperator,
    "aten.convolution_backward.default": ConvolutionBackward,
}
"""What calls them, by name."""


def make_operator(signature: Signature) -> Operator:
    """Return what calls the operator of a signature.

    Raises:
        ReplayError: It cannot be called.
    """
    if signature.op in CHOOSY:
        return CHOOSY[signature.op](signature)
    find = AttentionOperator if signature.op in HOMES else find_operator
    return find(signature.op)
