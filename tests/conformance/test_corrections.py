"""Corrected meta kernels, beside the CPU's own; and which of them can go."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.nn.functional import conv1d, conv2d, conv_transpose2d

from meta_magic import record
from meta_magic.recording.as_device.adjustments import CORRECTIONS, ON_CPU
from tests.conformance.corrected_calls import (
    BACKWARDS,
    KERNELLESS,
    LARGE,
    LOSSES,
    SEQUENCES,
)
from tests.conformance.sparse_calls import TO_STRIDES

aten = torch.ops.aten


groups = partial(torch.tensor, dtype=torch.int32)
edges = partial(torch.linspace, 0, 1, 6)
GROUPED = {
    "matrix by groups": lambda: torch._grouped_mm(
        torch.randn(6, 8), torch.randn(2, 8, 4), offs=groups([2, 6])
    ),
    "groups by groups": lambda: torch._grouped_mm(
        torch.randn(2, 6, 8), torch.randn(2, 8, 4)
    ),
    "groups by matrix": lambda: torch._grouped_mm(
        torch.randn(2, 4, 8), torch.randn(8, 8), offs=groups([4, 8])
    ),
    "matrix by matrix": lambda: torch._grouped_mm(
        torch.randn(4, 8), torch.randn(8, 4), offs=groups([4, 8])
    ),
}
RANGES = {
    "halves": lambda: torch.arange(0, 3, 0.5, dtype=torch.uint8),
    "downwards": lambda: torch.arange(3, 0, -0.7, dtype=torch.int32),
}
FACTORS = {
    "wide": lambda: torch.geqrf(torch.randn(2, 3, 5)),
    "high": lambda: torch.geqrf(torch.randn(5, 3)),
}
HISTOGRAMS = {
    "bins": lambda: torch.histogram(torch.rand(9), 4),
    "edges": lambda: torch.histogram(torch.rand(9), edges()),
    "boxes": lambda: torch.histogramdd(torch.rand(9, 2), bins=[3, 4]),
    "boxes by edges": lambda: torch.histogramdd(
        torch.rand(9, 2), bins=[edges(), edges()]
    ),
}


def update(operator, n_states, **settings):
    """Return a parameter that an optimizer's kernel wrote."""
    tensors = [torch.ones(3), torch.ones(3), torch.ones(3), torch.tensor(1.0)]
    operator(*([tensor] for tensor in tensors[: 2 + n_states]), **settings)
    return tensors[0]


FUSED = {
    "sgd": lambda: update(
        torch._fused_sgd_,
        1,
        **dict.fromkeys(["weight_decay", "momentum", "lr", "dampening"], 0.1),
        **dict.fromkeys(["nesterov", "maximize", "is_first_step"], False),
    ),
    "adagrad": lambda: update(
        torch._fused_adagrad_,
        2,
        **dict.fromkeys(["lr", "lr_decay", "weight_decay", "eps"], 0.1),
        maximize=False,
    ),
}
CALLS = GROUPED | RANGES | TO_STRIDES | FUSED | SEQUENCES
ASKED = FACTORS | HISTOGRAMS | KERNELLESS
"""Calls that meta has no kernel for either: the CPU is asked, if they are not large."""

REFUSALS = r"BF16|BFloat16|Meta kernel|SparseMeta|step must be nonzero"
RIGHT_SINCE = {"aten.arange.start_step": (2, 14), "aten._grouped_mm.default": (2, 15)}
"""The version of torch that needs no such correction."""

RIGHT = {op for op, version in RIGHT_SINCE.items() if torch.__version__ >= version}


def describe(returned):
    """Return what is to be the same of all tensors returned."""
    many = [returned] if isinstance(returned, torch.Tensor) else [*returned]
    flat = [t for one in many for t in (one if isinstance(one, tuple) else [one])]
    return [
        (t.shape, t.dtype, t.stride(), t.untyped_storage().nbytes())
        if t.layout is torch.strided
        else (t.shape, t.dtype, t.layout, t.sparse_dim(), t.is_coalesced())
        for t in flat
        if t is not None
    ]


@pytest.mark.parametrize(
    "call", [*CALLS.values(), *ASKED.values()], ids=[*CALLS, *ASKED]
)
def test_a_corrected_kernel_returns_what_the_cpu_does(call):
    wanted = describe(call())
    with record():
        met = call()
    assert describe(met) == wanted


@pytest.mark.parametrize("name", CALLS)
def test_a_correction_is_needed_by_the_versions_that_the_table_says(name):
    """Fails when torch is right by itself: then note since when."""
    with record() as trace:
        CALLS[name]()
    is_right = CORRECTIONS.keys() & {op.op for op in trace.ops} <= RIGHT
    refused = pytest.raises(RuntimeError, match=REFUSALS)
    with torch.device("meta"), nullcontext() if is_right else refused:
        CALLS[name]()


def test_every_correction_is_tested():
    with record() as trace:
        for call in CALLS.values():
            call()
    assert set(CORRECTIONS) <= {op.op for op in trace.ops}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("positions", [[1, 3], 2], ids=["positions", "sections"])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_tensor_is_split_at_what_a_tensor_says(positions, dim, is_named):
    def split():
        at = torch.tensor(positions)
        if is_named:
            return torch.tensor_split(
                torch.ones(5, 6), tensor_indices_or_sections=at, dim=dim
            )
        return torch.ones(5, 6).tensor_split(at, dim)

    wanted = describe(split())
    with record():
        met = split()
    assert describe(met) == wanted


def image(size=5):
    """Return an image whose channels come last."""
    return torch.ones(2, size, size, 8).permute(0, 3, 1, 2)


def norm(operator, dtypes, *settings):
    """Return a call of a norm of an input, weights and statistics of some dtypes."""

    def call():
        dtype, weights, statistics = (d and getattr(torch, d) for d in dtypes)
        a = torch.randn(3, 2, 4, dtype=dtype)
        w = weights and torch.ones(2, dtype=weights)
        stats = [torch.ones(2, dtype=statistics) for _ in range(2) if statistics]
        return operator(a, w, w, *stats, *settings)

    return call


def layer_norm(dtype, weights):
    return torch.native_layer_norm(
        torch.randn(3, 2, 4, dtype=dtype),
        [4],
        None if weights is None else torch.ones(4, dtype=weights),
        None,
        1e-5,
    )


BF16 = "bfloat16", "bfloat16", "bfloat16"
LAST = 0.1, 1e-5
NORMS = {
    "layer": lambda: layer_norm(torch.bfloat16, torch.bfloat16),
    "layer without weights": lambda: layer_norm(torch.bfloat16, None),
    "group, mixed": norm(
        aten.native_group_norm, ("bfloat16", "float32", None), 3, 2, 4, 2, 1e-5
    ),
    "batch": norm(aten.native_batch_norm, BF16, True, *LAST),
    "batch, running": norm(aten.native_batch_norm, BF16, False, *LAST),
    "batch, float32": norm(aten.native_batch_norm, ["float32"] * 3, False, *LAST),
    "batch, mixed": norm(
        aten.native_batch_norm, ("bfloat16", "float32", "float32"), False, *LAST
    ),
    "batch, legit": norm(aten._native_batch_norm_legit, BF16, True, *LAST),
    "batch, no statistics": norm(
        aten._native_batch_norm_legit, ("bfloat16", "bfloat16", None), True, *LAST
    ),
    "batch, updating": norm(aten._batch_norm_with_update, BF16, *LAST),
    "batch, not updating": norm(aten._batch_norm_no_update, BF16, *LAST),
}
IMAGES = {
    "convolution": lambda: conv2d(image(), torch.ones(8, 8, 3, 3)),
    "one pixel": lambda: conv2d(image(1), torch.ones(8, 8, 1, 1)),
    "of groups": lambda: conv2d(image(), torch.ones(8, 1, 3, 3), groups=8),
    "float64": lambda: conv2d(image().double(), torch.ones(8, 8, 3, 3).double()),
    "transposed": lambda: conv_transpose2d(image(), torch.ones(8, 4, 3, 3)),
    "weights with channels last": lambda: conv2d(
        torch.ones(2, 8, 5, 5),
        torch.ones(8, 8, 3, 3).to(memory_format=torch.channels_last),
    ),
}
LAYOUTS = {
    "gradient of a layer": lambda: aten.native_layer_norm_backward(
        *(torch.ones(6, 4).t(), torch.ones(6, 4).t(), [6]),
        *(torch.ones(4, 1), torch.ones(4, 1), None, None, [True, False, False]),
    )[:1],
    "norm of a vector": lambda: aten._weight_norm_interface(*torch.ones(2, 4), 0),
    "norm of half floats": lambda: aten._weight_norm_interface(
        torch.ones(4, 3).half(), torch.ones(1, 3).half(), 1
    ),
    "leaky": lambda: aten.rrelu_with_noise(
        torch.ones(4, 3).t(), torch.ones(3, 4), 0.1, 0.3, training=True
    ),
}


def wide(*shape):
    """Return ones in a storage with one element more."""
    return torch.ones(torch.Size(shape).numel() + 1)[:-1].view(shape)


STORAGES = {
    "mean of squares": lambda: torch.nn.functional.mse_loss(*torch.rand(2, 3, 5)),
    "smooth mean": lambda: torch.nn.functional.smooth_l1_loss(*torch.rand(2, 3, 5)),
    "slices of a copy": lambda: torch.slice_scatter(
        wide(3, 4), torch.ones(1, 4), 0, 1, 2
    ),
    "entries of a copy": lambda: torch.select_scatter(wide(3, 4), torch.ones(4), 0, 1),
    "diagonal of a copy": lambda: torch.diagonal_scatter(wide(3, 3), torch.ones(3)),
}
ONEDNN = {
    "lstm": lambda: torch.ops.aten.mkldnn_rnn_layer(
        *(torch.ones(2, 3, 3), torch.ones(16, 3), torch.ones(16, 4)),
        *(torch.ones(16), torch.ones(16), torch.ones(3, 4), torch.ones(3, 4)),
        *(False, [], 2, 4, 1, True, False, False, True),
    )
}
ANSWERED = NORMS | IMAGES | LAYOUTS | STORAGES | LARGE | LOSSES | ONEDNN | BACKWARDS
ELSEWHERE = {
    "aten.mkldnn_rnn_layer_backward.default",
    "aten._native_multi_head_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._transformer_encoder_layer_fwd.default",
    *(f"aten.kaiser_window.{name}" for name in ("default", "periodic", "beta")),
}
"""Tested with recurrent layers, fast paths of attention, layouts and bug reports."""
ALIKE = {
    "channels first": lambda: conv2d(torch.ones(2, 8, 5, 5), torch.ones(8, 8, 3, 3)),
    "of rows": lambda: conv1d(torch.ones(2, 5, 8).transpose(1, 2), torch.ones(4, 8, 3)),
    "layer, mixed": lambda: layer_norm(torch.bfloat16, torch.float32),
    "layer, float64": lambda: layer_norm(torch.float64, torch.float64),
    "batch, mixed": norm(
        aten.native_batch_norm, ("bfloat16", "float32", "float32"), True, *LAST
    ),
    "batch, no weights": norm(
        aten.native_batch_norm, ("bfloat16", None, "float32"), True, *LAST
    ),
    "large, a part with a dimension of size 1": lambda: torch.copysign(
        torch.ones(2004, 2, 42)[1:, 1:, 1:], torch.ones(1, 2003, 41).transpose(0, 1)
    ),
}
"""What CPU and meta answer alike."""


@pytest.mark.parametrize(
    "call", [*ANSWERED.values(), *ALIKE.values()], ids=[*ANSWERED, *ALIKE]
)
def test_as_on_the_cpu_a_kernel_answers_as_the_cpu(call):
    wanted = describe(call())
    with record(as_device="cpu"):
        met, again = call(), call()
    assert describe(met) == describe(again) == wanted


@pytest.mark.parametrize("name", ANSWERED)
def test_every_answer_of_the_cpu_is_another_than_that_of_meta(name):
    """Fails when torch on meta answers as the CPU: then remove the entry."""
    wanted = describe(ANSWERED[name]())
    with record(as_device="meta"):
        met = ANSWERED[name]()
    assert describe(met) != wanted


def test_every_answer_of_the_cpu_is_tested():
    with record(as_device="cpu") as trace:
        for call in ANSWERED.values():
            call()
    assert set(ON_CPU) - ELSEWHERE <= {op.op for op in trace.ops}
