"""The operators of ``rrelu``, which write or read their noise only in training."""

from typing import Final

from meta_magic.replaying.operators import Operator, find_function
from meta_magic.trace.signature import Signature, TensorArgument

__all__ = ["NOISY", "NoiseOperator"]

BACKWARD: Final = "aten.rrelu_with_noise_backward.default"
NOISY: Final = frozenset(
    {"aten.rrelu_with_noise.default", "aten.rrelu_with_noise_.default", BACKWARD}
)


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
        elif signature.op != BACKWARD:
            self.out |= {"noise"}
