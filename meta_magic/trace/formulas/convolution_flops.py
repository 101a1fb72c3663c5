"""Convolutions: each position meets one filter, which holds groups already.

A plain one has a position for each element of the output's plane, a transposed one for
each of the input's. Rims count as if the padding were data, as in ``FlopCounterMode``.
"""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

from meta_magic.trace.formulas.operands import Formula, Operands, Shape, of_all

__all__ = ["CONVOLUTION_FLOPS"]


def pair_positions(plane: Shape, weight: Shape) -> int:
    """Count the multiply-adds of all positions of a plane with all weights.

    Shape:
        plane: (sequences, channels, positions...), of whichever channels.
        weight: (filters, channels of a group, size...), each used at each position.
    """
    return 2 * plane[0] * prod(plane[2:]) * prod(weight)


def count_forward(call: Operands) -> int:
    """Count a convolution, transposed where its argument says so."""
    made = call.shape("input", "self") if call.value("transposed") else call.made
    return pair_positions(made, call.shape("weight"))


def count_transposed(call: Operands) -> int:
    """Count a convolution by an operator for transposed ones."""
    return pair_positions(call.shape("self"), call.shape("weight"))


def count_backward(call: Operands) -> int:
    """Count the gradients that are asked for.

    That of the input, and that of the weight, pair the same positions with the same
    weights as forward did; that of the bias is a sum.
    """
    wanted: Sequence[bool] = call.value("output_mask", (True, True, True))
    source = "input" if "input" in call else "self"
    plane = call.shape(source if call.value("transposed") else "grad_output")
    return sum(wanted[:2]) * pair_positions(plane, call.shape("weight"))


def count_time_first(call: Operands) -> int:
    """Count ``conv_tbc``: (time, sequences, channels) by (size, channels, filters)."""
    n_steps, n_sequences, _ = call.made
    return 2 * n_steps * n_sequences * prod(call.shape("weight"))


FORWARD: Final = """
convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution
cudnn_convolution_relu cudnn_convolution_add_relu _nnpack_spatial_convolution
_slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
_conv_depthwise2d conv_depthwise3d miopen_convolution miopen_convolution_relu
miopen_convolution_add_relu miopen_depthwise_convolution
"""
TRANSPOSED: Final = """
miopen_convolution_transpose cudnn_convolution_transpose slow_conv_transpose2d
slow_conv_transpose3d
"""
BACKWARD: Final = """
convolution_backward convolution_backward_overrideable _slow_conv2d_backward
"""

CONVOLUTION_FLOPS: Final[Mapping[str, Formula]] = MappingProxyType(
    of_all(FORWARD, count_forward)
    | of_all(TRANSPOSED, count_transposed)
    | of_all(BACKWARD, count_backward)
    | of_all("conv_tbc", count_time_first)
)
