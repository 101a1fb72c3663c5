"""Adjust results of torch's meta kernels, and replace those that refuse wrongly.

``ADJUSTMENTS`` run after each call of their operator, if the kernels of its device are
recorded: a batch norm of bfloat16 would else return statistics in float32.

``CORRECTIONS`` are of operators which torch *refuses* on meta and the CPU runs, as
``optim.SGD(..., fused=True)``; ``cpu_kernels`` asks the CPU about calls of up to 256
MiB only. They run after torch's own kernel failed. ``SHORT_KERNELS`` are for correct
but slow kernels. ``tests/conformance/test_corrections.py`` compares each with the CPU,
and fails when it is no longer needed.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear
from torch.nn.parameter import Parameter

from meta_magic.recording.as_device.cpu_kernels import (
    ask_cpu,
    describe,
    enlarge_storage,
)
from meta_magic.torch_private.distributed import make_finished_work
from meta_magic.torch_private.tensor_internals import suggest_memory_format


def cast_loss(returned: Tensor, a: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a loss of the dtype of its input.

    Source: ``mse_loss`` and its like in ``Loss.cpp`` of torch 2.13; on meta they, and
    their gradients, are composed of operators that promote dtypes.
    """
    return returned.to(a.dtype) if a.is_meta else returned


def cast_loss_gradient(returned: Tensor, _: Tensor, a: Tensor, *__: Any) -> Tensor:
    """Return a gradient of the dtype of its input. Source: as above."""
    return cast_loss(returned, a)


def keep_losses(returned: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a mean on the storage of the losses of all elements.

    The CPU writes the mean over the first of them, so that ``as_strided`` of the mean
    works there, and fails on meta.

    Source: ``mse_loss_out``, ``smooth_l1_loss_out``, ``soft_margin_loss`` and
    ``binary_cross_entropy_cpu`` in ``Loss.cpp`` of torch 2.13.
    """
    numel = prod(torch.broadcast_shapes(a.shape, b.shape))
    is_kept = returned.is_meta and not returned.ndim
    return enlarge_storage(returned, numel * returned.itemsize) if is_kept else returned


def keep_entropies(returned: Tensor, *args: Any, **given: Any) -> Tensor:
    """Return a loss of the input's dtype on a large storage. Source: as above."""
    return keep_losses(cast_loss(returned, *args, **given), *args)


PADDING, BOTH = 1, 2
"""Kinds of masks: of keys that are padding, and merged masks for each head."""


def attend(  # noqa: PLR0913, PLR0917  the operator's own
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return attention, and its weights if they are wanted.

    The fast paths of attention in eval mode: torch's meta kernels check no sizes. The
    text of the errors here does not matter: the CPU is asked for its own.

    Shape:
        ``(b, t, d)`` and ``(b, t, s)``, or ``(b, h, t, s)`` if they are not averaged.
    """
    (n, n_queries, width), n_keys = query.shape, key.shape[1]
    require(width == embed_dim and not embed_dim % num_head)
    require(key.shape == value.shape == (n, n_keys, embed_dim))
    require_alike(query, key, value, qkv_weight, qkv_bias, proj_weight, proj_bias)
    for weight in qkv_weight.split(embed_dim):
        require(weight.shape == (embed_dim, embed_dim))
    require(qkv_bias.shape == qkv_weight.shape[:1] == (3 * embed_dim,))
    if not query.numel():
        return torch.empty_like(query), None
    if mask is not None:
        heads = (n, num_head) if mask_type == BOTH else ()
        wanted = (n, n_keys) if mask_type == PADDING else (*heads, n_queries, n_keys)
        require(mask.shape == wanted)
    made = linear(query.new_empty(query.shape), proj_weight, proj_bias)
    each = () if average_attn_weights else (num_head,)
    weights = query.new_empty((n, *each, n_queries, n_keys))
    return made, weights if need_weights else None


def encode(
    returned: Any,
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    *given: Any,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Return the output of an encoder layer. Shape: ``(b, t, d)``."""
    if not src.numel():
        return src.clone()
    projections, (_, _, eps, *norms) = given[:4], given[4:11]
    feeding, masks = given[11:15], (*given[15:], *(mask, mask_type)[len(given) - 15 :])
    operands: list[Any] = [src, src, src, embed_dim, num_heads, *projections]
    operands += masks[0], True, True, masks[1]  # the weights are averaged
    made, _ = attend(returned, *operands)
    require_alike(src, *feeding)
    made += src
    made = layer_norm(made, (embed_dim,), norms[0], norms[1], eps)
    made += linear(linear(made, *feeding[:2]), *feeding[2:])
    return layer_norm(made, (embed_dim,), norms[2], norms[3], eps)


def check_attention(
    returned: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    *_: Any,
    attn_mask: Tensor | None = None,
    **__: Any,
) -> Any:
    """Return what flash attention gives, for arguments that the CPU accepts.

    Source: ``_scaled_dot_product_flash_attention_cpu`` in ``attention.cpp`` of torch
    2.13; its meta kernel checks nothing.
    """
    require_alike(query, key, value)
    require(query.is_floating_point() and not dropout_p)
    require({t.ndim for t in (query, key, value)} == {4})
    require(query.shape[-1] == key.shape[-1] == value.shape[-1])
    if attn_mask is not None:
        require(attn_mask.dtype in {query.dtype, torch.float32})
        require(attn_mask.ndim in {2, 4})
        attn_mask.expand(*query.shape[:3], key.shape[2])
    return returned


def require_alike(*tensors: Tensor) -> None:
    """Raise unless tensors have one dtype."""
    require(len({tensor.dtype for tensor in tensors}) == 1)


def require(is_right: bool) -> None:  # noqa: FBT001
    """Raise unless arguments are right."""
    if not is_right:
        raise ValueError("wrong arguments")


def keep_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return the result of a norm, with mean and deviation in the dtype of the CPU.

    Source: ``native_layer_norm`` in torch's ``_refs``, and ``native_batch_norm_helper``
    in its decompositions ("very annoying inconsistency"): CUDA, and so meta, keeps
    float32; the CPU keeps the dtype of the parameters, and nothing for a batch norm
    that does not train.
    """
    if not next((v for v in arguments if isinstance(v, bool)), True):  # no training
        return drop_statistics(returned, a, *arguments)
    dtype = find_dtype(a, arguments)
    output, mean, deviation, *rest = returned
    if not a.is_meta or mean.dtype == dtype:
        return returned
    return (output, mean.to(dtype), deviation.to(dtype), *rest)


def drop_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return the result of a norm without mean and deviation. Source: as above."""
    if not a.is_meta:
        return returned
    output, _, _, *rest = returned
    dtype = find_dtype(a, arguments)
    return (output, a.new_empty(0, dtype=dtype), a.new_empty(0, dtype=dtype), *rest)


def lay_out_layer_gradient(
    returned: tuple[Tensor | None, ...], _: Tensor, a: Tensor, *__: Any
) -> tuple[Tensor | None, ...]:
    """Return a gradient in rows.

    Source: ``layer_norm_backward_cpu`` in ``layer_norm.cpp`` of torch 2.13, and
    ``layer_norm_backward_cuda`` in ``layer_norm_kernel.cu``: the gradient has the
    layout of a contiguous input.
    """
    gradient, *rest = returned
    if gradient is None or not a.is_meta:
        return returned
    return (torch.empty_like(gradient, memory_format=torch.contiguous_format), *rest)


def copy_storage(returned: Tensor, a: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a tensor on a storage as large as the input's, which the CPU copies.

    Source: ``clone_preserve_strides`` in ``TensorShape.cpp`` of torch 2.13.
    """
    if not returned.is_meta or returned.storage_offset() != a.storage_offset():
        return returned
    return enlarge_storage(returned, a.untyped_storage().nbytes())


def keep_last_of_window(returned: Tensor, n: int, *rest: Any, **given: Any) -> Tensor:
    """Return a window on a storage of one more element, if it is periodic.

    Source: ``kaiser_window`` in ``TensorFactories.cpp`` of torch 2.13.
    """
    is_periodic = given.get("periodic", rest[0] if rest else True)
    if n <= 1 or not is_periodic:
        return returned
    return enlarge_storage(returned, (n + 1) * returned.itemsize)


def make_workspace(returned: tuple[Tensor | None, ...], *args: Any) -> Any:
    """Return the result of oneDNN, with the workspace that its backward reads.

    Source: ``mkldnn_rnn_layer`` in ``mkldnn/RNN.cpp`` of torch 2.13: there is no
    workspace without gradients, and only oneDNN knows its size.
    """
    *outputs, _ = returned
    if not args[0].is_meta:
        return returned
    if not torch.is_grad_enabled():
        return (*outputs, None)
    metadata = describe(args)
    if metadata not in workspaces:
        layer = torch.ops.aten.mkldnn_rnn_layer.default
        asked = ask_cpu(layer, args, {}, wants_gradients=True)
        workspaces[metadata] = 0 if asked is NotImplemented else asked[-1].numel()
    return (*outputs, args[0].new_empty(workspaces[metadata], dtype=torch.uint8))


def separate_biases(returned: tuple[Tensor, ...], *_: Any) -> tuple[Tensor, ...]:
    """Return gradients that are all different tensors.

    Source: ``meta_mkldnn_rnn_layer_backward`` in torch 2.13: both biases share one.
    """
    *weights, bias = returned[:4]
    return (*weights, bias, torch.empty_like(bias), *returned[5:])


workspaces: dict[object, int] = {}
"""Sizes of workspaces by the metadata of the arguments."""


def find_dtype(a: Tensor, arguments: Sequence[Any]) -> torch.dtype:
    """Return the dtype of the first parameter of a norm, or that of its input."""
    return next((v.dtype for v in arguments if isinstance(v, Tensor)), a.dtype)


def lay_out_image(returned: Tensor, a: Tensor, weight: Tensor, *_: object) -> Tensor:
    """Return the result of a convolution, channels last if an argument is.

    Source: ``meta_conv`` in torch 2.13 ("Memory format is left as contiguous: meta
    tensors have no device info"); ``mkldnn_conv_use_channels_last`` and
    ``cudnn_conv_suggest_memory_format`` in ``aten/src/ATen/native/ConvUtils.h``.
    """
    last = torch.channels_last
    is_image = a.is_meta and a.ndim == len("NCHW")
    if not is_image or last not in map(suggest_memory_format, (a, weight)):
        return returned
    shape, dtype = returned.shape, returned.dtype
    return torch.empty(shape, dtype=dtype, device="meta", memory_format=last)


def lay_out_norm(
    returned: tuple[Tensor, Tensor], _: Tensor, g: Tensor, *__: Any, **___: Any
) -> tuple[Tensor, Tensor]:
    """Return the norm of a weight with the sizes of ``g``, of half floats in float32.

    Source: ``weight_norm_cpu`` in ``WeightNorm.cpp`` of torch 2.13. Meta has one norm
    for a weight of one dimension, and keeps float16.
    """
    weight, norm = returned
    if not norm.is_meta:
        return returned
    dtype = torch.promote_types(g.dtype, torch.float32)
    return weight, torch.empty_strided(g.shape, g.stride(), dtype=dtype, device="meta")


def mask_gradients(
    returned: tuple[Tensor | None, ...], *arguments: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a batch norm that ``output_mask`` asks for.

    Source: ``native_batch_norm_backward`` in torch 2.13's decompositions, which meta
    runs, always returns the gradient of the input; kernels of devices read the mask.
    """
    masks = (v for v in arguments if isinstance(v, (list, tuple)) and True in v)
    mask = next(masks, [False] * len(returned))
    return tuple(t if m else None for t, m in zip(returned, mask, strict=True))


ON_CPU: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.convolution.default": lay_out_image,
    "aten.native_layer_norm.default": keep_statistics,
    "aten.native_group_norm.default": keep_statistics,
    "aten.native_layer_norm_backward.default": lay_out_layer_gradient,
    "aten.binary_cross_entropy.default": keep_entropies,
    "aten.huber_loss.default": cast_loss,
    "aten.huber_loss_backward.default": cast_loss_gradient,
    "aten.mse_loss.default": keep_losses,
    "aten.mse_loss_backward.default": cast_loss_gradient,
    "aten.smooth_l1_loss.default": keep_losses,
    "aten.smooth_l1_loss_backward.default": cast_loss_gradient,
    "aten.soft_margin_loss.default": keep_entropies,
    "aten.soft_margin_loss_backward.default": cast_loss_gradient,
    "aten.slice_scatter.default": copy_storage,
    "aten.select_scatter.default": copy_storage,
    "aten.diagonal_scatter.default": copy_storage,
    "aten.mkldnn_rnn_layer.default": make_workspace,
    "aten.mkldnn_rnn_layer_backward.default": separate_biases,
    "aten.native_batch_norm.default": keep_statistics,
    "aten._native_batch_norm_legit.default": keep_statistics,
    "aten._native_batch_norm_legit.no_stats": keep_statistics,
    "aten._batch_norm_with_update.default": keep_statistics,
    "aten._batch_norm_no_update.default": drop_statistics,
    "aten.native_batch_norm_backward.default": mask_gradients,
    "aten.batch_norm_backward.default": mask_gradients,
    "aten._weight_norm_interface.default": lay_out_norm,
    "aten.kaiser_window.default": keep_last_of_window,
    "aten.kaiser_window.periodic": keep_last_of_window,
    "aten.kaiser_window.beta": keep_last_of_window,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": check_attention,
    "aten._native_multi_head_attention.default": attend,
    "aten._transformer_encoder_layer_fwd.default": encode,
}
ADJUSTMENTS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "cpu": ON_CPU,
    "cuda": {
        "aten.convolution.default": lay_out_image,
        "aten.native_layer_norm_backward.default": lay_out_layer_gradient,
        "aten.native_batch_norm_backward.default": mask_gradients,
        "aten.batch_norm_backward.default": mask_gradients,
    },
    "meta": {},
}
"""By device and operator; each takes the result of the kernel, and the arguments."""


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,  # noqa: ARG001  the schema's
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply groups of matrices.

    Shape:
        ``(m, k) @ (g, k, n)`` is ``(m, n)``, ``(g, m, k) @ (k, n)`` is ``(m, n)``,
        ``(m, k) @ (k, n)`` is ``(g, m, n)`` with one group for each of ``offs``, and
        ``(g, m, k) @ (g, k, n)`` is ``(g, m, n)``.

    Source: torch 2.13 on meta: "Expected inputs of BF16 type"; the CPU takes others.
    """
    is_matrix = a.ndim == 2, b.ndim == 2  # noqa: PLR2004
    n_groups = len(offs) if offs is not None and all(is_matrix) else a.shape[0]
    leading = () if any(is_matrix) and not all(is_matrix) else (n_groups,)
    shape = (*leading, a.shape[-2], b.shape[-1])
    return torch.empty(shape, dtype=out_dtype or a.dtype, device="meta")


def arange(start: float, end: float, step: float = 1, **options: Any) -> Tensor | Any:
    """Return integers in steps of less than one; ``NotImplemented`` for other steps.

    Source: ``arange_out`` in ``aten/src/ATen/native/RangeFactories.cpp`` of torch 2.13:
    the CPU counts them before it rounds the step, except for int64.
    """
    dtype = options.get("dtype")
    is_narrow = dtype is not None and not dtype.is_floating_point
    if not is_narrow or dtype is torch.int64 or not step or int(step):
        return NotImplemented
    return torch.empty(ceil((end - start) / step), dtype=dtype, device="meta")


CORRECTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten._grouped_mm.default": grouped_mm,
    "aten.arange.start_step": arange,
    "aten._ctc_loss_backward.default": lambda _, a, *__, **___: a.new_empty(a.shape),
    # They write their arguments, and return nothing.
    "aten._fused_sgd_.default": lambda *_, **__: None,
    "aten._fused_adagrad_.default": lambda *_, **__: None,
    "aten._to_dense.default": lambda a, dtype=None, **_: torch.empty(
        a.shape, dtype=dtype or a.dtype, device="meta"
    ),
}
"""By the operator's name. Torch 2.13 has no meta kernel for those with a lambda."""


# Kernels of torch that are right and slow

PLAIN: Final = (Tensor, Parameter)


def multiply_and_add(bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Return the result of ``addmm``: a new tensor in rows, whatever the strides.

    Unusual or wrong arguments are left to torch's own kernel.

    Source: ``aten/src/ATen/native/LinearAlgebra.cpp`` of torch 2.13. Meta runs the one
    of ``torch/_decomp/decompositions.py``, which takes 0.4 ms for the same result.
    """
    is_usual = (
        all(type(given) in PLAIN and given.is_meta for given in (bias, a, b))
        and (a.dim(), b.dim(), bias.dim()) == (2, 2, 1)
        and a.shape[1] == b.shape[0]
        and bias.shape[0] in {1, b.shape[1]}
        and bias.dtype is a.dtype is b.dtype
        and a.is_floating_point()
    )
    if not is_usual:
        return torch.ops.aten.addmm.default(bias, a, b, **scales)
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="meta")


def draw_normally(a: Tensor, mean: float = 0, std: float = 1, **given: Any) -> Any:
    """Return the tensor that ``normal_`` writes; leave what it refuses to torch.

    Source: ``aten/src/ATen/native/DistributionTemplates.h`` of torch 2.13. Meta runs
    ``torch/_refs/__init__.py: normal_``, which takes 0.4 ms.
    """
    if type(a) in PLAIN and a.is_meta and a.is_floating_point() and std >= 0:
        return a
    return torch.ops.aten.normal_.default(a, mean, std, **given)


def return_and_finish(tensors: list[Tensor], *_: Any) -> Any:
    """Return the tensors of a collective, and a handle that holds them."""
    return tensors, make_finished_work(list(tensors))


def finish(tensors: list[Tensor], *_: Any) -> Any:
    """Return a handle, which holds the tensors of a collective or message."""
    return make_finished_work(list(tensors))


SHORT_KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.addmm.default": multiply_and_add,
    "aten.normal_.default": draw_normally,
    # On a device it wraps its argument; torch's meta kernel makes a new tensor.
    "_c10d_functional._wrap_tensor_autograd.default": torch.ops.aten.alias.default,
    # DDP takes the tensors from the handle; torch's meta kernel gives an empty one.
    "c10d.allreduce_.default": return_and_finish,
    "c10d.broadcast_.default": return_and_finish,
    "c10d.allreduce_coalesced_.default": finish,
    # The tensor of a message must live until the process waits for the message.
    "c10d.send.default": finish,
    "c10d.recv_.default": finish,
}
"""Short kernels by the operator's name."""
