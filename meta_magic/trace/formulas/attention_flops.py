"""FLOPs of fused attention: over all pairs of positions, or without masked pairs.

Forward has two products, Q Kᵀ and P V. Backward has five: Q Kᵀ again, as a fused kernel
keeps no scores, dV = Pᵀ dO, dP = dO Vᵀ, dQ = dS K and dK = dSᵀ Q. Query heads are
counted, also where several share a key head. Softmax, dropout and scaling are not
counted.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Final, NamedTuple, TypeAlias

from meta_magic.trace.formulas.operands import Formula, Operands


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


FORWARD: Final = Products(of_keys=1, of_values=1)
BACKWARD: Final = Products(of_keys=3, of_values=2)
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
        **{op: build(read, FORWARD) for op, read in READER_BY_FORWARD.items()},
        **{op: build(read, BACKWARD) for op, read in READER_BY_BACKWARD.items()},
    }


ATTENTION_FLOPS: Final[Mapping[str, Formula]] = {
    **build_formulas(lambda _, lengths: lengths.n_pairs),
    "aten._native_multi_head_attention": count_fast,
    "aten._transformer_encoder_layer_fwd": count_encoder,
}
"""All pairs counted."""

NEEDED_ATTENTION_FLOPS: Final[Mapping[str, Formula]] = build_formulas(count_pairs)
"""Without masked pairs."""
