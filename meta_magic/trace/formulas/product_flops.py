"""Products of matrices, convolutions, recurrent layers, fused attention: their FLOPs.

2 for each multiply-add. A bias, and a result that is added to, are not counted, as in
``FlopCounterMode``. In a convolution each position is multiplied with one filter;
borders count as if the padding were data. In a recurrent kernel each step is multiplied
with all weights of a layer; sigmoids, tanhs and biases are not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Final, NamedTuple, TypeAlias

from meta_magic.trace.signature import Formula, Operands, Shape, of_all


def product_of(left: str) -> Formula:
    """Return the formula of a product with that argument as its left side.

    Each element of the left side is multiplied with a row of the right side, which is
    as long as a row of the result.
    """
    return lambda call: 2 * prod(call.shape(left)) * call.made[-1]


def once_for_each(name: str) -> Formula:
    """Return the formula of a product that uses each element of a tensor once."""
    return lambda call: 2 * prod(call.shape(name))


def count_grouped(call: Operands) -> int:
    """Count a product for each group; a side without groups is split into them.

    Shape:
        (rows, k) by (groups, k, n): each row by the matrix of its group.
        (m, rows) by (rows, n), the gradient of weights: each element by a row of n.
        (groups, m, k) by (k, columns): each column by the matrix of its group.
        (groups, m, k) by (groups, k, n): a product each.
    """
    left, right = call.shape("self"), call.shape("mat2")
    is_cut_right = len(left) > len(right)
    return 2 * prod(left[1:] if is_cut_right else left) * right[-1]


def count_trilinear(call: Operands) -> int:
    """Count the two products that sum over three tensors, as those of ``Bilinear``.

    The first two are multiplied, and summed over what the third lacks; then the third.

    Source:
        ``_trilinear`` in ``aten/src/ATen/native/Linear.cpp``.
    """
    sides: list[list[int]] = [list(call.shape(f"i{n}")) for n in (1, 2, 3)]
    lacking: list[list[int]] = [call.value(f"expand{n}") for n in (1, 2, 3)]
    for side, dims in zip(sides, lacking, strict=True):
        for dim in sorted(dims):
            side.insert(dim, 1)
    first: list[int] = [max(pair) for pair in zip(*sides[:2], strict=True)]
    early: list[int] = [d for d in call.value("sumdim") if d in lacking[2]]
    left = [1 if d in early else n for d, n in enumerate(first)]
    second: list[int] = [max(pair) for pair in zip(left, sides[2], strict=True)]
    return 2 * (prod(first) + prod(second))


MATRIX_FLOPS: Final[Mapping[str, Formula]] = (
    of_all("mm bmm _int_mm _scaled_mm _scaled_mm_v2 mkldnn_linear", product_of("self"))
    | of_all("_weight_int8pack_mm _weight_int4pack_mm", product_of("self"))
    | {"aten._weight_int4pack_mm_for_cpu": product_of("self")}
    | of_all("addmm _addmm_activation", product_of("mat1"))
    | of_all("baddbmm addbmm", product_of("batch1"))
    | of_all("linear _mixed_dtypes_linear", product_of("input"))
    | of_all("mv dot vdot addr", once_for_each("self"))
    | of_all("addmv", once_for_each("mat"))
    | of_all("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2", count_grouped)
    | {"aten._trilinear": count_trilinear}
)


def pair_positions(plane: Shape, weight: Shape) -> int:
    """Count the multiply-adds of all positions of a plane with all weights.

    Shape:
        plane: (sequences, channels, positions...); the channels do not count.
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
    """Count the gradients in ``output_mask``.

    The gradients of input and weight pair the same positions with the same weights as
    forward; the gradient of the bias is a sum.
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

CONVOLUTION_FLOPS: Final[Mapping[str, Formula]] = (
    of_all(FORWARD, count_forward)
    | of_all(TRANSPOSED, count_transposed)
    | of_all(BACKWARD, count_backward)
    | of_all("conv_tbc", count_time_first)
)

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
    """Count the gradients of the inputs, and of the weights if ``output_mask`` says."""
    *_, of_weights = call.value("output_mask", (True,))
    return count_layers(call) * (2 if of_weights else 1)


RECURRENT_FLOPS: Final[Mapping[str, Formula]] = {
    "aten.mkldnn_rnn_layer": lambda call: count_layer(call, "weight0", "weight1"),
    "aten.mkldnn_rnn_layer_backward": lambda call: (
        2 * count_layer(call, "weight1", "weight2")
    ),
    "aten._cudnn_rnn": count_layers,
    "aten._cudnn_rnn_backward": count_layers_backward,
    "aten.miopen_rnn": count_layers,
    "aten.miopen_rnn_backward": count_layers_backward,
}


class Lengths(NamedTuple):
    """Query heads of all sequences together, and positions in one sequence."""

    n_heads: int
    n_queries: int
    n_keys: int

    @property
    def n_pairs(self) -> int:
        """All pairs of a query and a key."""
        return self.n_heads * self.n_queries * self.n_keys


class Products(NamedTuple):
    """Number of products as wide as keys, and as wide as values."""

    of_keys: int
    of_values: int


ATTENDING: Final = Products(of_keys=1, of_values=1)
GOING_BACK: Final = Products(of_keys=3, of_values=2)
Reader: TypeAlias = Callable[[Operands], Lengths]


def read_heads_first(call: Operands) -> Lengths:
    """Read shapes (sequences, heads, positions, width), or without sequences."""
    query, key = call.shape("query"), call.shape("key")
    return Lengths(prod(query[:-2]), query[-2], key[-2])


def read_positions_first(call: Operands) -> Lengths:
    """Read shapes (sequences, positions, heads, width)."""
    query, key = call.shape("query"), call.shape("key")
    return Lengths(prod(query[:-3]) * query[-2], query[-3], key[-3])


def read_row(call: Operands, dense: Reader) -> Lengths:
    """Read packed sequences, or else those of a dense tensor.

    The lengths of packed sequences are data: all count as the longest one.
    """
    if "cum_seq_q" not in call and "cu_seqlens_q" not in call:
        return dense(call)
    n_sequences = call.shape("cum_seq_q", "cu_seqlens_q")[0] - 1
    n_queries = call.value("max_q") or call.value("max_seqlen_q")
    n_keys = call.value("max_k") or call.value("max_seqlen_k")
    return Lengths(n_sequences * call.shape("query")[-2], n_queries, n_keys)


def count_pairs(call: Operands, lengths: Lengths) -> int:
    """Count the pairs that neither a causal mask nor a window leaves out.

    Query i sees the keys from i - left to i + right. If there are more keys than
    queries, a mask of flash attention itself is aligned to the last key and query, a
    mask of ``scaled_dot_product_attention`` to the first.
    """
    _, n_queries, n_keys = lengths
    mask = call.value("custom_mask_type", 0)
    is_flash = call.signature.op.startswith("aten._flash_attention")
    shift = n_keys - n_queries if is_flash or mask == FROM_LAST else 0
    own = call.value("window_size")  # the efficient kernel's, with the query's position
    left = call.value("window_size_left", own - 1 if own else None)
    right = 0 if call.value("is_causal") or mask else call.value("window_size_right")
    far = n_keys + n_queries
    first = shift - (far if left is None or left < 0 else left)
    end = shift + (far if right is None or right < 0 else right) + 1
    n_before = add_limited(first, n_queries, n_keys)
    return lengths.n_heads * (add_limited(end, n_queries, n_keys) - n_before)


FROM_LAST: Final = 2
"""``custom_mask_type`` of a causal mask that is aligned to the last positions."""


def add_limited(first: int, n: int, limit: int) -> int:
    """Sum n consecutive numbers, each clamped to 0 and the limit."""

    def below(end: int) -> int:
        within = min(max(end, 0), limit + 1)
        return within * (within - 1) // 2 + max(end - limit - 1, 0) * limit

    return below(first + n) - below(first)


def count_fast(call: Operands) -> int:
    """Count three projections, the products with two of them, and the last one.

    Shape:
        query, key: (sequences, positions, width).
    """
    (n, n_queries, width), (_, n_keys, _) = call.shape("query"), call.shape("key")
    n_projected = 2 * n_queries + 2 * n_keys
    return 2 * n * width * (n_projected * width + 2 * n_queries * n_keys)


def count_encoder(call: Operands) -> int:
    """Count attention of a sequence to itself, and the two layers after it."""
    *_, n_positions, width = source = call.shape("src")
    n = prod(source[:-2])
    attention = 2 * n * n_positions * width * (4 * width + 2 * n_positions)
    n_hidden = call.shape("ffn_weight_1")[0]
    return attention + 4 * prod(source) * n_hidden


read_cudnn: Final = partial(read_row, dense=read_heads_first)
read_flash: Final = partial(read_row, dense=read_positions_first)

READER_BY_FORWARD: Final[Mapping[str, Reader]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": read_heads_first,
    "aten._scaled_dot_product_flash_attention": read_heads_first,
    "aten._scaled_dot_product_efficient_attention": read_heads_first,
    "aten._scaled_dot_product_cudnn_attention": read_heads_first,
    "aten._scaled_dot_product_fused_attention_overrideable": read_heads_first,
    "aten._cudnn_attention_forward": read_cudnn,
    "aten._flash_attention_forward": read_flash,
    "aten._flash_attention_forward_no_dropout_inplace": read_flash,
    "aten._efficient_attention_forward": read_flash,
}
READER_BY_BACKWARD: Final[Mapping[str, Reader]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": read_heads_first,
    "aten._scaled_dot_product_flash_attention_backward": read_heads_first,
    "aten._scaled_dot_product_efficient_attention_backward": read_heads_first,
    "aten._scaled_dot_product_cudnn_attention_backward": read_heads_first,
    "aten._scaled_dot_product_fused_attention_overrideable_backward": (
        read_heads_first
    ),
    "aten._cudnn_attention_backward": read_cudnn,
    "aten._flash_attention_backward": read_flash,
    "aten._efficient_attention_backward": read_flash,
}
"""How the shapes of each kernel are read."""


def build_formulas(count: Callable[[Operands, Lengths], int]) -> dict[str, Formula]:
    """Return formulas for forward and backward of all kernels, by what counts pairs."""

    def build(read: Reader, products: Products) -> Formula:
        def multiply(call: Operands) -> int:
            of_keys = products.of_keys * call.shape("query")[-1]
            of_values = products.of_values * call.shape("value")[-1]
            return 2 * count(call, read(call)) * (of_keys + of_values)

        return multiply

    return {
        **{op: build(read, ATTENDING) for op, read in READER_BY_FORWARD.items()},
        **{op: build(read, GOING_BACK) for op, read in READER_BY_BACKWARD.items()},
    }


ATTENTION_FLOPS: Final[Mapping[str, Formula]] = {
    **build_formulas(lambda _, lengths: lengths.n_pairs),
    "aten._native_multi_head_attention": count_fast,
    "aten._transformer_encoder_layer_fwd": count_encoder,
}
"""All pairs counted."""

NEEDED_ATTENTION_FLOPS: Final[Mapping[str, Formula]] = build_formulas(count_pairs)
"""Without masked pairs."""
