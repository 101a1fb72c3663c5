"""What torch's meta kernels answer as no device does, adjusted to what a device gives.

Asked after each call of such an operator, where the kernels of that device are wanted.
An operator that torch's kernel *refuses* on meta belongs into ``corrections``.
``tests/conformance/test_corrections.py`` compares each with the CPU and says when it
can go.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import ask_cpu, enlarge_storage
from meta_magic.recording.as_device.fast_attention import attend, encode
from meta_magic.recording.as_device.losses import LOSSES
from meta_magic.torch_private.tensor_internals import suggest_memory_format

__all__ = ["ADJUSTMENTS", "ON_CPU"]


def keep_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return what a norm does, with mean and deviation as the CPU keeps them.

    Source:
        ``native_layer_norm`` in torch's ``_refs``, and ``native_batch_norm_helper`` in
        its decompositions ("very annoying inconsistency"): CUDA, and so meta, keeps
        float32; the CPU keeps the dtype of the parameters, and for a batch norm that
        does not train nothing.
    """
    is_training = next((v for v in arguments if isinstance(v, bool)), True)
    if not is_training:
        return drop_statistics(returned, a, *arguments)
    dtype = find_dtype(a, arguments)
    output, mean, deviation, *rest = returned
    if not a.is_meta or mean.dtype == dtype:
        return returned
    return (output, mean.to(dtype), deviation.to(dtype), *rest)


def drop_statistics(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return what a norm does without mean and deviation. Source: as above."""
    if not a.is_meta:
        return returned
    output, _, _, *rest = returned
    dtype = find_dtype(a, arguments)
    return (output, a.new_empty(0, dtype=dtype), a.new_empty(0, dtype=dtype), *rest)


def lay_out_layer_gradient(
    returned: tuple[Tensor | None, ...], _: Tensor, a: Tensor, *__: Any
) -> tuple[Tensor | None, ...]:
    """Return a gradient laid out in rows.

    Source:
        ``layer_norm_backward_cpu`` in ``layer_norm.cpp`` of torch 2.13, which makes it
        with the layout of a contiguous input.
    """
    gradient, *rest = returned
    if gradient is None or not a.is_meta:
        return returned
    return (torch.empty_like(gradient, memory_format=torch.contiguous_format), *rest)


def lay_out_rows(returned: Any, a: Tensor, *_: Any, **__: Any) -> Any:
    """Return a tensor, or several, laid out in rows.

    Source:
        ``rrelu_with_noise_cpu`` and ``log_sigmoid_forward_cpu`` in ``Activation.cpp``
        of torch 2.13.
    """
    if not a.is_meta:
        return returned
    if isinstance(returned, tuple):
        return tuple(lay_out_rows(tensor, a) for tensor in returned)
    return torch.empty_like(returned, memory_format=torch.contiguous_format)


def copy_storage(returned: Tensor, a: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a tensor on a storage as large as the input's, all of which was copied.

    Source:
        ``clone_preserve_strides`` in ``TensorShape.cpp`` of torch 2.13.
    """
    if not returned.is_meta or returned.storage_offset() != a.storage_offset():
        return returned
    return enlarge_storage(returned, a.untyped_storage().nbytes())


def keep_last_of_window(returned: Tensor, n: int, *rest: Any, **given: Any) -> Tensor:
    """Return a window on a storage with one element more, if it is periodic.

    Source:
        ``kaiser_window`` in ``TensorFactories.cpp`` of torch 2.13.
    """
    is_periodic = given.get("periodic", rest[0] if rest else True)
    if n <= 1 or not is_periodic:
        return returned
    return enlarge_storage(returned, (n + 1) * returned.itemsize)


def make_workspace(returned: tuple[Tensor | None, ...], *args: Any) -> Any:
    """Return what oneDNN does, with the workspace that its backward reads.

    Source:
        ``mkldnn_rnn_layer`` in ``mkldnn/RNN.cpp`` of torch 2.13: without gradients it
        makes none, and how large it is only oneDNN knows.
    """
    *outputs, _ = returned
    if not args[0].is_meta:
        return returned
    if not torch.is_grad_enabled():
        return (*outputs, None)
    metadata = tuple(
        (value.shape, value.stride(), value.dtype)
        if isinstance(value, Tensor)
        else str(value)
        for value in args
    )
    if metadata not in workspaces:
        layer = torch.ops.aten.mkldnn_rnn_layer.default
        asked = ask_cpu(layer, args, {}, wants_gradients=True)
        workspaces[metadata] = 0 if asked is NotImplemented else asked[-1].numel()
    return (*outputs, args[0].new_empty(workspaces[metadata], dtype=torch.uint8))


def part_biases(returned: tuple[Tensor, ...], *_: Any) -> tuple[Tensor, ...]:
    """Return gradients of which none is another.

    Source:
        ``meta_mkldnn_rnn_layer_backward`` in torch 2.13, where both biases share one.
    """
    *weights, bias = returned[:4]
    return (*weights, bias, torch.empty_like(bias), *returned[5:])


workspaces: dict[object, int] = {}
"""How large they are, by the metadata of the arguments."""


def find_dtype(a: Tensor, arguments: Sequence[Any]) -> torch.dtype:
    """Return the dtype of the first parameter of a norm; the input's without any."""
    return next((v.dtype for v in arguments if isinstance(v, Tensor)), a.dtype)


def lay_out_image(returned: Tensor, a: Tensor, weight: Tensor, *_: object) -> Tensor:
    """Return what a convolution does, channels last if those of an argument are.

    Source:
        ``meta_conv`` in torch 2.13 ("Memory format is left as contiguous: meta tensors
        have no device info"); ``mkldnn_conv_use_channels_last`` and
        ``cudnn_conv_suggest_memory_format`` in ``aten/src/ATen/native/ConvUtils.h``.
    """
    last = torch.channels_last
    is_image = a.is_meta and a.ndim == len("NCHW")
    if not is_image or last not in map(suggest_memory_format, (a, weight)):
        return returned
    return torch.empty(
        returned.shape, dtype=returned.dtype, device="meta", memory_format=last
    )


def leave_out(
    returned: tuple[Tensor | None, ...], *arguments: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a batch norm that are asked for.

    Source:
        ``native_batch_norm_backward`` in torch 2.13's decompositions, which meta runs,
        gives that of the input always; the kernels of devices look at ``output_mask``.
    """
    masks = (v for v in arguments if isinstance(v, (list, tuple)) and True in v)
    mask = next(masks, [False] * len(returned))
    return tuple(t if m else None for t, m in zip(returned, mask, strict=True))


def lay_out_channels(returned: Tensor, a: Tensor, *_: Any) -> Tensor:
    """Return a tensor with the channels last if those of an input are, else in rows.

    Source:
        ``roll`` in ``TensorTransformations.cpp`` of torch 2.13, which joins pieces;
        ``batch_norm_cpu`` and ``batch_norm_backward_cpu`` in ``Normalization.cpp``.
    """
    layout = suggest_memory_format(a)
    if not a.is_meta or returned.is_contiguous(memory_format=layout):
        return returned
    return torch.empty_like(returned, memory_format=layout)


def lay_out_batch_norm(
    returned: tuple[Tensor, ...], a: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Return what a batch norm does as the CPU. Source: as above."""
    output, *statistics = keep_statistics(returned, a, *arguments)
    return (lay_out_channels(output, a), *statistics)


def lay_out_batch_gradient(
    returned: tuple[Tensor | None, ...], grad: Tensor, a: Tensor, *arguments: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a batch norm that are asked for. Source: as above."""
    gradient, *others = leave_out(returned, grad, a, *arguments)
    laid_out = None if gradient is None else lay_out_channels(gradient, a)
    return (laid_out, *others)


SCATTERS: Final = (
    "aten.slice_scatter.default",
    "aten.select_scatter.default",
    "aten.diagonal_scatter.default",
)

KAISER: Final = tuple(
    f"aten.kaiser_window.{n}" for n in ("default", "periodic", "beta")
)

ON_CPU: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten.convolution.default": lay_out_image,
        "aten.native_layer_norm.default": keep_statistics,
        "aten.native_group_norm.default": keep_statistics,
        "aten.native_layer_norm_backward.default": lay_out_layer_gradient,
        "aten.rrelu_with_noise.default": lay_out_rows,
        "aten.log_sigmoid_forward.default": lay_out_rows,
        **LOSSES,
        **dict.fromkeys(SCATTERS, copy_storage),
        "aten.mkldnn_rnn_layer.default": make_workspace,
        "aten.mkldnn_rnn_layer_backward.default": part_biases,
        "aten.native_batch_norm.default": lay_out_batch_norm,
        "aten._native_batch_norm_legit.default": lay_out_batch_norm,
        "aten._native_batch_norm_legit.no_stats": lay_out_batch_norm,
        "aten._batch_norm_with_update.default": lay_out_batch_norm,
        "aten._batch_norm_no_update.default": drop_statistics,
        "aten.native_batch_norm_backward.default": lay_out_batch_gradient,
        "aten.batch_norm_backward.default": lay_out_batch_gradient,
        "aten.roll.default": lay_out_channels,
        **dict.fromkeys(KAISER, keep_last_of_window),
        "aten._native_multi_head_attention.default": attend,
        "aten._transformer_encoder_layer_fwd.default": encode,
    }
)
ADJUSTMENTS: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = MappingProxyType(
    {
        "cpu": ON_CPU,
        "cuda": MappingProxyType(
            {
                "aten.convolution.default": lay_out_image,
                "aten.native_batch_norm_backward.default": leave_out,
                "aten.batch_norm_backward.default": leave_out,
            }
        ),
        "meta": MappingProxyType({}),
    }
)
"""By device and operator; each takes what its kernel returned, and the arguments."""
