"""Autocast on meta: on the CPU compared with the CPU itself."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from meta_magic import record
from tests.unit.eager import Names, assert_same, assert_same_operators


def attend():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.zeros(1, 4, 8)
    return attention(x, x, x, need_weights=False)[0]


def weigh():
    """Use a parameter twice, which is cast once; then one that is no parameter."""
    layer = nn.Linear(3, 3)
    x = torch.zeros(2, 3)
    return layer(layer(x)) @ torch.zeros(3, 4)


CALLS = {
    "linear": lambda: nn.Linear(3, 4)(torch.zeros(2, 5, 3)),
    "a parameter twice": weigh,
    "conv2d": lambda: nn.Conv2d(3, 4, 3, padding="same")(torch.zeros(1, 3, 5, 5)),
    "matmul": lambda: torch.zeros(2, 3, 4) @ torch.zeros(4, 5),
    "prelu": lambda: nn.PReLU()(torch.zeros(2, 3)),
    "attention": attend,
    "softmax": lambda: torch.zeros(2, 3).softmax(-1),
    "layer norm": lambda: nn.LayerNorm(3)(torch.zeros(2, 3)),
    "a loss": lambda: F.mse_loss(
        torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)
    ),
    "cross entropy": lambda: F.cross_entropy(
        nn.Linear(3, 4)(torch.zeros(2, 3)), torch.zeros(2, dtype=torch.long)
    ),
    "cat of two dtypes": lambda: torch.cat(
        [torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)]
    ),
    "float64": lambda: torch.zeros(2, 3, dtype=torch.float64).mm(
        torch.zeros(3, 2, dtype=torch.float64)
    ),
    "prod": lambda: torch.zeros(2, dtype=torch.bfloat16).prod(),
    "pooling": lambda: F.avg_pool3d(torch.zeros(1, 1, 2, 2, 2).bfloat16(), 2),
}


def list_ops(trace):
    """Return the names of all operators."""
    return [op.op for op in trace.ops]


@pytest.mark.parametrize("name", CALLS)
def test_as_cpu_casts_are_those_of_the_cpu(name):
    call = CALLS[name]
    with Names() as real, torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = call()
    with record(as_device="cpu") as trace, torch.autocast("cpu", torch.bfloat16):
        met = call()
    assert list_ops(trace) == real.ops
    assert (met.dtype, met.shape) == (wanted.dtype, wanted.shape)


def test_a_training_step_is_that_of_the_cpu():
    def step():
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.zeros(5, 3)).float().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return [p.grad.dtype for p in model.parameters()]

    assert_same_operators(step, skipped=["lift"])
    assert_same(step, as_device="cpu")


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        # autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP, _FP32, _SET_OPT_DTYPE, _PROMOTE
        (lambda x: x @ x, torch.float16),
        (lambda x: (x @ x).exp(), torch.float32),
        (lambda x: torch.softmax(x @ x, -1, None), torch.float32),
        (lambda x: torch.softmax(x @ x, -1, torch.float64), torch.float64),
        (lambda x: (x @ x).sum(), torch.float32),
        (lambda x: F.layer_norm(x @ x, (4,)), torch.float32),
        (lambda x: torch.addcmul(x, x @ x, x @ x), torch.float32),
        (lambda x: torch.addcmul(x @ x, x @ x, x @ x), torch.float16),
        (lambda x: (x @ x).relu(), torch.float16),
        (lambda x: F.scaled_dot_product_attention(x, x, x), torch.float16),
    ],
)
def test_as_cuda_casts_are_those_of_torchs_table(call, dtype):
    with record(as_device="cuda"):
        x = torch.zeros(4, 4)
        with torch.autocast("cuda"):
            assert call(x).dtype == dtype
            assert torch.is_autocast_enabled("cuda")
        assert (x @ x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")


def test_as_cuda_what_is_unsafe_is_refused():
    with record(as_device="cuda"), torch.autocast("cuda"):
        x = torch.zeros(2)
        with pytest.raises(RuntimeError, match="with_logits"):
            F.binary_cross_entropy(x, x)


@pytest.fixture
def _library():
    """A library that registers kernels for autocast, as torchvision does."""
    library = torch.library.Library("mm_cast", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.define("double.of(Tensor x, int n) -> Tensor")
    for device in ("CPU", "CUDA"):
        for name in ("double", "double.of"):
            library.impl(name, lambda x, *_: x * 2, f"Autocast{device}")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    yield
    library._destroy()


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_library_with_casts_of_its_own_changes_nothing_for_others(device):
    with record(as_device=device), torch.autocast(device, torch.bfloat16):
        assert nn.Linear(3, 4)(torch.zeros(2, 3)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled(device)


@pytest.mark.usefixtures("_library")
def test_that_a_library_would_cast_by_itself_is_said():
    def double():
        with torch.autocast("cpu", torch.bfloat16):
            torch.ops.mm_cast.double(torch.zeros(2))

    with record(as_device="cpu") as trace:
        double()
    assert "mm_cast.double.default casts by a kernel" in trace.program.caveats[0][0]


@pytest.mark.parametrize(
    "name", ["linear", "conv2d", "matmul", "softmax", "layer norm", "cross entropy"]
)
def test_in_inference_mode_casts_are_those_of_the_cpu(name):
    with torch.inference_mode(), torch.autocast("cpu"):
        wanted = CALLS[name]()
    with record(as_device="cpu"), torch.inference_mode(), torch.autocast("cpu"):
        assert CALLS[name]().dtype == wanted.dtype
        assert CALLS[name]().dtype == wanted.dtype


def test_a_region_that_is_switched_off_does_not_end_the_cache_of_the_one_around_it():
    def run():
        layer, x = nn.Linear(2, 2), torch.ones(1, 2)
        with torch.autocast("cpu"):
            layer(x)
            with torch.autocast("cpu", enabled=False):
                x + 1
            layer(x)

    assert_same_operators(run)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_activations_that_are_computed_again_are_cast_again(device, use_reentrant):
    with record(as_device=device) as trace:
        layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
        with torch.autocast(device, torch.bfloat16):
            y = checkpoint(layer, x, use_reentrant=use_reentrant)
        y.float().sum().backward()
    products = [op.inputs[0].dtype for op in trace.ops if "mm" in op.op]
    assert len(products) >= 3
    assert set(products) == {torch.bfloat16}


ORDERS = [(True, False), (False, True), (True, True)]
"""For each of two calls whether it is within a context that asks for no gradients."""


def call_twice(context, order):
    """Return the operators of a layer, and whether the last call wants gradients."""
    with Names() as names, torch.autocast("cpu"):
        weight = nn.Parameter(torch.ones(3, 4))
        for is_within in order:
            with context() if is_within else nullcontext():
                made = F.linear(torch.ones(2, 3, 4).transpose(0, 1), weight)
    return names.ops, made.requires_grad


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_is_cast_without_gradients_serves_calls_that_want_them(order):
    wanted, wants_gradient = call_twice(torch.no_grad, order)
    with record(as_device="cpu") as trace:
        _, met = call_twice(torch.no_grad, order)
    assert met == wants_gradient
    assert [op.op for op in trace.ops] == wanted
