"""Operations of operators that compute element by element, counted apart from FLOPs.

A weight is the number of arithmetic operations and elementary functions (exp, sqrt,
tanh, erf, a comparison: one each) for each element of the largest tensor, by the usual
formula of the operator. The table of weights is at the end: names without ``aten``,
``_foreach_`` and the ``_`` of operators that write in place.
"""

from collections.abc import Mapping
from math import log2, prod
from typing import Final

from meta_magic.trace.signature import Formula, Operands, of_all


def count_elementwise(name: str, call: Operands) -> int | None:
    """Return the operations of a call that is no product; None if they are unknown."""
    base = name.replace("._foreach_", ".")
    if base not in WEIGHT_BY_OP:
        base = base.removesuffix("_")
    if base in SPECIAL:
        return SPECIAL[base](call)
    weight = WEIGHT_BY_OP.get(base)
    if not weight:
        return weight
    if isinstance(call.value("self"), tuple):  # _foreach_ and fused optimizers
        return weight * sum(map(prod, call.shapes("self")))
    return weight * call.largest


def each_of(argument: str, weight: int = 1) -> Formula:
    """Return a formula: ``weight`` operations for each element of one argument."""
    return lambda call: weight * prod(call.shape(argument))


def each_made(weight: int = 1) -> Formula:
    """Return a formula: ``weight`` operations for each element of the result."""
    return lambda call: weight * prod(call.made)


def count_windows(call: Operands) -> int:
    """Count one operation for each element of each window of a pooling."""
    size = call.value("kernel_size")
    n_dims = 1 if "1d" in call.signature.op else 3 if "3d" in call.signature.op else 2
    sizes = size if isinstance(size, tuple) and len(size) > 1 else (size,) * n_dims
    n_each: int = prod(n[0] if isinstance(n, tuple) else n for n in sizes)
    return prod(call.made) * n_each


def count_comparisons(call: Operands) -> int:
    """Count n log₂ n comparisons for each row that is sorted."""
    shape = call.shape("self")
    n = shape[call.value("dim", -1)] if shape else 1
    return round(prod(shape) * log2(max(n, 1)))


def count_accumulated(call: Operands) -> int:
    """Count one addition for each value that is added; none where values replace."""
    return prod(call.shape("values")) if call.value("accumulate") else 0


def count_bags(call: Operands) -> int:
    """Count one addition for each element of each row that is looked up."""
    return prod(call.shape("indices")) * call.made[-1]


SPECIAL: Final[Mapping[str, Formula]] = (
    of_all("avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices", count_windows)
    | of_all(
        "max_pool3d_with_indices mkldnn_max_pool2d mkldnn_max_pool3d", count_windows
    )
    | of_all("sort msort argsort", count_comparisons)
    | of_all("index_put _index_put_impl _unsafe_index_put", count_accumulated)
    | of_all("_embedding_bag _embedding_bag_forward_only", count_bags)
    | of_all("embedding_dense_backward", each_of("grad_output"))
    | of_all("index_add", each_of("source"))
    | of_all("scatter_add scatter_reduce", each_of("src"))
    | of_all("nll_loss_forward nll_loss2d_forward", each_of("target"))
    | of_all("nll_loss_backward nll_loss2d_backward", each_of("target"))
    # Along each axis: weights, and the neighbours that they multiply.
    | of_all("upsample_linear1d", each_made(4))
    | of_all("upsample_bilinear2d grid_sampler_2d", each_made(11))
    | of_all("upsample_trilinear3d grid_sampler_3d", each_made(22))
    | of_all("upsample_bicubic2d", each_made(40))
    | of_all("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", each_made(40))
    | of_all("upsample_linear1d_backward", each_of("grad_output", 4))
    | of_all("upsample_bilinear2d_backward", each_of("grad_output", 11))
    | of_all("upsample_trilinear3d_backward", each_of("grad_output", 22))
    | of_all("upsample_bicubic2d_backward", each_of("grad_output", 40))
    | of_all("grid_sampler_2d_backward", each_of("grad_output", 22))
)
"""Operators whose work does not follow from their largest tensor."""

MADE: Final = """
hann_window hamming_window blackman_window bartlett_window kaiser_window empty
empty_like empty_strided empty_permuted new_empty new_empty_strided full full_like
new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor eye arange
range linspace logspace fill zero _efficientzerotensor rand rand_like randn randn_like
randint randint_like randperm normal normal_functional uniform random bernoulli
exponential geometric cauchy log_normal multinomial poisson binomial _standard_gamma
tril_indices triu_indices complex polar _philox_uniform _philox_normal from_file
"""
"""Operators that make values from none. No formula says what a random number costs."""

MOVED: Final = """
_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc to_padded_tensor
_jagged_to_padded_dense_forward _padded_dense_to_jagged_forward to_mkldnn _resize_output
mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight slice_inverse is_coalesced
_coalesced _sparse_coo_tensor_with_dims_and_tensors sparse_mask int_repr _fw_primal
_make_dual _mkldnn_reshape _mkldnn_transpose _fill_mem_eff_dropout_mask_
_linalg_check_errors clone copy _to_copy _copy_from _copy_from_and_resize lift
lift_fresh detach alias _unsafe_view _reshape_alias _reshape_copy _lazy_clone view_copy
cat stack _stack _chunk_cat block_diag repeat repeat_interleave roll flip rot90
constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
replication_pad2d replication_pad3d tril triu diag_embed diagonal_scatter select_scatter
slice_scatter as_strided_scatter scatter gather index index_select index_fill index_copy
take put _unsafe_index _unsafe_masked_index masked_fill masked_scatter masked_select
where embedding embedding_renorm nonzero nonzero_static select_backward slice_backward
diagonal_backward unfold_backward value_selecting_reduction_backward
index_select_backward resize resize_as set record_stream pin_memory _pin_memory
is_pinned pixel_shuffle pixel_unshuffle channel_shuffle im2col upsample_nearest1d
upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d view_as_real view_as_complex _conj
_neg_view squeeze unsqueeze t transpose permute as_strided narrow_copy unfold split
split_with_sizes unsafe_split unsafe_split_with_sizes unbind expand view
_local_scalar_dense equal is_same_size is_set_to _has_same_storage_numel _assert_async
_functional_assert_async _assert_scalar _functional_assert_scalar
_assert_tensor_metadata sym_size _to_dense to_sparse _pack_padded_sequence
_pad_packed_sequence _fused_sdp_choice max_unpool2d max_unpool3d lu_unpack
_nested_tensor_from_mask_left_aligned _nested_tensor_from_mask
_convert_indices_from_coo_to_csr quantize_per_tensor dequantize
_cudnn_rnn_flatten_weight _cudnn_init_dropout_state
"""
"""Operators that move values, or return a view."""

ONE: Final = """
frexp histogram adaptive_avg_pool3d adaptive_avg_pool3d_backward
mkldnn_adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d_backward
mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward fractional_max_pool2d_backward
fractional_max_pool3d_backward _coalesce _embedding_bag_backward add sub rsub mul div
neg abs sign sgn floor ceil round trunc frac reciprocal sqrt rsqrt exp exp2 expm1 log
log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh atan2
sigmoid erf erfc erfinv pow relu threshold threshold_backward clamp clamp_min
clamp_max hardtanh hardtanh_backward maximum minimum fmax fmin fmod remainder
floor_divide true_divide eq ne lt le gt ge logical_and logical_or logical_xor
logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ __ilshift__ __irshift__
isnan isinf isneginf isposinf isfinite isin signbit copysign nextafter conj_physical
_conj_physical angle deg2rad rad2deg nan_to_num heaviside sum nansum mean prod max min
amax amin argmax argmin any all count_nonzero cumsum cumprod cummax cummin
_cummax_helper _cummin_helper trace median nanmedian mode kthvalue topk _unique
_unique2 unique_dim unique_consecutive unique_dim_consecutive bincount histc
searchsorted bucketize allclose gcd lcm hypot mvlgamma lgamma digamma polygamma i0
igamma igammac special_i0e special_i1 special_i1e special_ndtri special_erfcx
special_zeta special_log_ndtr special_bessel_j0 special_bessel_j1 is_nonzero
masked_scatter_backward index_reduce col2im fft_fftfreq fft_rfftfreq _is_all_true
_is_any_true max_pool2d_backward max_pool2d_with_indices_backward
max_pool3d_with_indices_backward adaptive_avg_pool1d _adaptive_avg_pool2d
_adaptive_avg_pool3d adaptive_avg_pool2d _adaptive_avg_pool2d_backward
_adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool3d
adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d_backward
avg_pool3d_backward upsample_nearest1d_backward upsample_nearest2d_backward
upsample_nearest3d_backward _upsample_nearest_exact1d_backward
_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
_unsafe_masked_index_put_accumulate _embedding_bag_dense_backward _amp_update_scale
renorm segment_reduce linalg__powsum

"""
"""Operators with one function, or one operation of a sum, for each element."""

WEIGHTS: Final[Mapping[int, str]] = {
    0: MADE + MOVED,
    1: ONE,
    2: """
        norm linalg_vector_norm native_norm native_dropout native_dropout_backward
        _fused_dropout _masked_scale  leaky_relu leaky_relu_backward
        prelu _prelu_kernel rrelu_with_noise rrelu_with_noise_backward hardshrink
        hardshrink_backward softshrink softshrink_backward _add_relu xlogy
        special_xlog1py special_entr ldexp silu glu aminmax _aminmax softplus sinc
        batch_norm_elemt _amp_foreach_non_finite_check_and_unscale
        """,
    3: """
        rrelu_with_noise_functional batch_norm_gather_stats_with_counts
        batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_gather_stats
        batch_norm_update_stats multi_margin_loss_backward
        multilabel_margin_loss_backward
        addcmul addcdiv lerp mse_loss mse_loss_backward l1_loss elu celu selu logit
        hardsigmoid hardswish log_sigmoid_forward sigmoid_backward tanh_backward dist
        elu_backward softplus_backward hardsigmoid_backward log_sigmoid_backward
        linalg_cross _prelu_kernel_backward _weight_norm_interface logcumsumexp
        """,
    4: """
        var std var_mean std_mean mish logsumexp _softmax_backward_data
        _log_softmax_backward_data _masked_softmax_backward _fused_rms_norm
        soft_margin_loss huber_loss_backward smooth_l1_loss_backward
        hardswish_backward batch_norm_stats glu_backward logit_backward
        """,
    # Softmax: greatest, difference, exp, sum, and quotient or difference. GELU: x
    # by the root of 2, erf, plus 1, by x, by a half.
    5: """
        _softmax softmax _log_softmax log_softmax _safe_softmax _masked_softmax gelu
        smooth_l1_loss huber_loss soft_margin_loss_backward
        binary_cross_entropy_backward multi_margin_loss multilabel_margin_loss_forward
        """,
    # Batch norm by known statistics: difference, scale, weight, bias, and both of
    # each channel. Gradient of SiLU: sigmoid, 1 less it, by x, plus 1, by both.
    6: """
        _native_batch_norm_legit_no_training _batch_norm_no_update silu_backward
        logaddexp logaddexp2 _weight_norm_interface_backward
        """,
    7: "binary_cross_entropy _thnn_fused_lstm_cell _thnn_fused_gru_cell",
    # Norms: sum, difference, square, sum; difference, scale, weight, bias.
    8: """
        native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm
        _native_batch_norm_legit _native_batch_norm_legit_functional miopen_batch_norm
        _batch_norm_with_update _fused_rms_norm_backward
        binary_cross_entropy_with_logits
        """,
    # SGD, of each parameter: decay 2, momentum 4, step and difference 2.
    # GELU's gradient: normal distribution 4, its density 3, by x, sum, by both.
    10: """
        _fused_sgd gelu_backward mish_backward _thnn_fused_lstm_cell_backward_impl
        _thnn_fused_gru_cell_backward
        """,
    # Adagrad: decay,  and sum, root and eps 2 each, quotient, step, sum.
    9: "_fused_adagrad ",
    # Norms: two sums over products with the gradient, and gradients of three.
    14: """
        native_layer_norm_backward native_group_norm_backward
        native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward
        miopen_batch_norm_backward
        """,
    # Adam: decay 2, first moment 3, second 4, root, correction and eps 3, quotient,
    # step and difference.
    15: "_fused_adam _fused_adamw",
}

INITIALIZERS: Final = "nn.init"
"""The name of a function of ``torch.nn.init`` that is recorded as one call."""

WEIGHT_BY_OP: Final[Mapping[str, int]] = {
    f"aten.{n}": weight for weight, names in WEIGHTS.items() for n in names.split()
} | {INITIALIZERS: 0}
"""Operations for each element. A view that is not listed has none either."""
