"""Statements that compute: entry by entry, reductions, products, other shapes."""

UNARY = """
abs neg exp exp2 expm1 log log1p log2 sqrt rsqrt sin cos tan asin atan sinh cosh tanh
asinh erf erfc erfinv sigmoid reciprocal square sign floor ceil round trunc frac
digamma lgamma isnan isfinite isinf logical_not logit positive sgn deg2rad nan_to_num
angle relu selu
"""
BINARY = """
add sub mul div true_divide maximum minimum fmax fmin atan2 hypot fmod remainder
floor_divide eq ne lt le gt ge logical_and logical_or logical_xor copysign nextafter
logaddexp xlogy heaviside dist isclose pow float_power
"""
REDUCED = """
sum mean prod amax amin argmax argmin std var logsumexp all any cumsum cumprod softmax
log_softmax count_nonzero nansum nanmean norm median nanmedian argsort sort max min
cummax cummin logcumsumexp flip mode
"""
WHOLE = """
sum mean prod amax amin argmax argmin std var all any count_nonzero norm median max
min std_mean var_mean aminmax unique nonzero flatten ravel diff
"""
ACTIVATION = """
relu gelu silu elu leaky_relu hardtanh hardswish hardsigmoid mish relu6 softplus
softsign tanhshrink logsigmoid celu selu
"""

POINTWISE = """
{new} = torch.{unary}({any})
{new} = {any}.{unary}()
{new} = torch.{binary}({any}, {same})
{new} = torch.{binary}({any}, {same})
{new} = {any} {operator} {same}
{new} = {any} {operator} {number}
{new} = {number} {operator} {any}
{new} = {any} {operator} {same}
{new} = torch.add({any}, {same}, alpha={number})
{new} = torch.where({any} > 0, {any}, {same})
{new} = torch.where({bool}, {same}, {number})
{new} = torch.clamp({any}, {number}, 2)
{new} = torch.clamp({any}, max={same})
{new} = torch.lerp({float}, {same}, .3)
{new} = torch.addcmul({float}, {same}, {same2}, value=.5)
{new} = torch.addcdiv({float}, {same}, {same2})
{new} = ~{bool}
{new} = {int} & {same}
{new} = {int} << 2
{new} = torch.pow({number}, {any})
{new} = torch.bitwise_xor({int}, {same})
{new} = torch.polar({float}, {float})
{new} = F.{activation}({float})
{new} = F.softmax({dims}.float(), {dim})
{new} = F.glu({dims})
{new} = F.prelu({float}, torch.tensor(.2))
{new} = F.normalize({dims}.float(), dim={dim})
{new} = F.threshold({float}, .1, 0.)
{new} = torch.sinc({float})
{new} = torch.special.{special}({float})
{new} = torch.gcd({int}, {same})
{new} = torch.isclose({float}, {same}.to({float}.dtype))
{new} = torch.fake_quantize_per_tensor_affine({float}, .1, 0, 0, 255)
"""

REDUCTIONS = """
{new} = torch.{whole}({any})
{new} = {any}.{whole}()
{new} = torch.{reduced}({dims}, {dim})
{new} = torch.{reduced}({dims}, {dim})
{new} = torch.{keepable}({dims}, {dim}, keepdim=True)
{new} = {any}.sum(dtype={dtype})
{new} = torch.sum({dims}, {dim}, dtype={fdtype})
{new}, {new2} = torch.sort({dims}, {dim}, descending={flag})
{new}, {new2} = torch.sort({dims}, {dim}, stable=True)
{new}, {new2} = torch.max({dims}, {dim})
{new}, {new2} = torch.topk({dims}, 2, {dim})
{new}, {new2} = torch.kthvalue({dims}, 1, {dim})
{new}, {new2} = torch.var_mean({float})
{new} = torch.quantile({float}, .3)
{new} = torch.histc({float}, 4)
{new} = torch.bincount({int}.flatten().abs())
{new} = torch.unique({any})
{new}, {new2} = torch.unique({any}, return_inverse=True)
{new} = torch.cdist({matrix}, {matrix})
{new} = torch.trapezoid({float})
{new} = torch.linalg.vector_norm({float}, {number})
{new} = torch.searchsorted({vector}, {float})
{new} = torch.bucketize({float}, torch.tensor([0., 1., 2.]))
{new} = torch.cov({matrix})
{new} = torch.renorm({matrix}, 2, 0, 1.)
"""

PRODUCTS = """
{new} = {matrix} @ {matrix}.t()
{new} = {matrix} @ {matrix2}
{new} = torch.mm({matrix}.t(), {matrix})
{new} = torch.matmul({float}, {float2})
{new} = torch.bmm({batch}, {batch}.mT)
{new} = torch.einsum("ij,kj->ik", {matrix}, {matrix})
{new} = torch.einsum("...i,...i->...", {float}, {float})
{new} = torch.addmm({float}, {matrix}, {matrix}.t())
{new} = torch.outer({vector}, {vector2})
{new} = torch.dot({vector}, {vector})
{new} = torch.mv({matrix}, torch.ones({matrix}.shape[1], dtype={matrix}.dtype))
{new} = torch.kron({matrix}, torch.eye(2))
{new} = torch.tensordot({float}, {float}, {float}.ndim)
{new} = F.linear({float}, torch.randn(3, 4))
{new} = torch.linalg.{spectral}({matrix})
{new} = torch.linalg.svdvals({float})
{new} = torch.linalg.{of_square}({square} + 4 * torch.eye({square}.shape[0]))
{new} = torch.linalg.solve({square} + 4 * torch.eye({square}.shape[0]), {square})
{new} = torch.linalg.matrix_norm({matrix})
{new} = torch.baddbmm({batch}, torch.ones(2, 3, 3), {batch})
{new} = torch.cross(torch.ones(2, 3), torch.rand(2, 3), 1)
{new} = F.scaled_dot_product_attention({batch}, {batch}, {batch})
{new} = F.conv2d({image}, torch.randn(3, {image}.shape[1], 3, 3))
{new} = F.conv1d({batch}, torch.randn(2, {batch}.shape[1], 2))
{new} = F.conv_transpose2d({image}, torch.randn({image}.shape[1], 2, 2, 2))
{new} = torch.fft.{fft}({dims})
{new} = torch.sparse.mm(torch.eye(4).to_sparse(), torch.ones(4, 2))
"""

SHAPING = """
{new} = torch.cat([{dims}, {dims}], {dim})
{new} = torch.cat([{dims}, {same}])
{new} = torch.stack([{any}, {same}])
{new} = torch.stack([{any}, {any}], -1)
{new} = torch.hstack([{any}, {any2}])
{new} = {any}.repeat(2, *[1] * {any}.ndim)
{new} = torch.tile({any}, (2,))
{new} = torch.repeat_interleave({any}, 2)
{new} = torch.roll({dims}, 1, {dim})
{new} = torch.flip({dims}, [{dim}])
{new} = torch.rot90({matrix})
{new} = F.pad({dims}, (1, 1))
{new} = F.pad({batch}, (1, 1), mode="reflect")
{new} = torch.tril({matrix})
{new} = torch.diag({vector})
{new} = torch.diag_embed({float})
{new} = F.interpolate({image}, scale_factor=2)
{new} = F.interpolate({image}, size=(3, 3), mode="bilinear")
{new} = F.pixel_shuffle({image}, 2)
{new} = F.{pool}({image}, 2)
{new} = F.adaptive_avg_pool2d({image}, 1)
{new} = F.unfold({image}, 2)
{new} = F.one_hot({int})
{new} = F.one_hot({int}, 20)
{new} = torch.gather({dims}, {dim}, torch.zeros_like({dims}, dtype=torch.long))
{new} = torch.index_select({dims}, {dim}, torch.tensor([0, 0]))
{new} = torch.take({any}, torch.tensor([0]))
{new} = torch.take_along_dim({dims}, {dims}.argsort({dim}), {dim})
{new} = torch.masked_select({any}, {any} > 0)
{new} = {any}[{any} > 0]
{new} = {any}[torch.arange({any}.shape[0] - 1, -1, -1)]
{new}, {new2} = torch.meshgrid(torch.arange(2), {vector}, indexing="ij")
{new} = torch.cartesian_prod({vector}, {vector})
{new} = torch.combinations({vector})
{new} = torch.block_diag({matrix}, {matrix})
{new} = {any}.to({dtype})
{new} = {any}.type_as({any2})
{new} = {any}.clone()
{new} = {any}.double()
{new} = {any}.clone(memory_format=torch.contiguous_format)
{new} = copy.deepcopy({constant})
{new} = copy.copy({constant})
{new} = pickle.loads(pickle.dumps({constant}))
{new} = torch.nonzero({any})
{new} = torch.argwhere({any})
{new} = F.embedding({int}, torch.randn(20, 4))
{new} = {batch}.transpose(1, 2).contiguous()
{new} = {image}.to(memory_format=torch.channels_last)
{new} = torch.scatter({dims}, {dim}, torch.zeros_like({dims}, dtype=torch.long), {number})
{new} = torch.masked_fill({any}, {any} > 0, {number})
{new} = torch.constant_pad_nd({any}, (1, 0), {number})
"""  # noqa: E501

WORDS = {
    "unary": UNARY.split(),
    "binary": BINARY.split(),
    "reduced": REDUCED.split(),
    "whole": WHOLE.split(),
    "activation": ACTIVATION.split(),
    "operator": ["+", "-", "*", "/", "//", "%", "**", "==", "<", ">=", "!="],
    "special": ["entr", "expit", "erfcx", "i0", "i1", "log_ndtr", "ndtr", "bessel_j0"],
    "keepable": [
        "sum",
        "mean",
        "amax",
        "argmin",
        "std",
        "logsumexp",
        "all",
        "any",
        "median",
        "max",
    ],
    "spectral": ["qr", "svdvals", "matrix_rank", "pinv"],
    "of_square": ["inv", "det", "slogdet", "cholesky", "eigvals", "eigvalsh"],
    "fft": ["fft", "rfft", "ifft", "fftn", "fftshift"],
    "pool": ["max_pool2d", "avg_pool2d", "lp_pool2d"][:2],
}
