"""Recurrent layers that are one kernel: each step meets all weights of a layer.

Sigmoids, tanhs and biases are not counted. Taken apart, as the CPU runs a GRU and CUDA
an LSTM with a cell of its own, the products are those of ``matrix_flops``.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Final

from meta_magic.trace.formulas.operands import Formula, Operands

__all__ = ["RECURRENT_FLOPS"]

MATRIX: Final = 2
"""Dimensions of a weight; a bias has one."""


def count_layer(call: Operands, first: str, second: str) -> int:
    """Count the two products of each step, for one layer in one direction.

    Shape:
        input: (steps, sequences, width), in whichever order, or (rows, width).
    """
    n_weights = prod(call.shape(first)) + prod(call.shape(second))
    return 2 * prod(call.shape("input")[:-1]) * n_weights


def count_layers(call: Operands) -> int:
    """Count the products of each step with the weights of all layers and directions."""
    weights = [shape for shape in call.shapes("weight") if len(shape) == MATRIX]
    return 2 * prod(call.shape("input")[:-1]) * sum(map(prod, weights))


def count_layers_backward(call: Operands) -> int:
    """Count the gradients of what went in, and of weights where they are asked for."""
    *_, of_weights = call.value("output_mask", (True,))
    return count_layers(call) * (2 if of_weights else 1)


RECURRENT_FLOPS: Final[Mapping[str, Formula]] = MappingProxyType(
    {
        "aten.mkldnn_rnn_layer": lambda call: count_layer(call, "weight0", "weight1"),
        "aten.mkldnn_rnn_layer_backward": lambda call: (
            2 * count_layer(call, "weight1", "weight2")
        ),
        "aten._cudnn_rnn": count_layers,
        "aten._cudnn_rnn_backward": count_layers_backward,
        "aten.miopen_rnn": count_layers,
        "aten.miopen_rnn_backward": count_layers_backward,
    }
)
