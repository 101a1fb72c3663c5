"""What is recorded as on CUDA: the operators of a run on an H100 with torch 2.11."""

import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from meta_magic import record

ATTENTION = "_scaled_dot_product_efficient_attention"


def differentiate(made):
    """Run the backward pass of a sum, and return the sum."""
    total = made.sum()
    total.backward()
    return total


def make(*shape):
    return torch.randn(*shape, requires_grad=True)


def attend(heads=4, keys=4, width=8, values=8, mask=None):
    q, k, v = (
        make(2, heads, 5, width),
        make(2, keys, 5, width),
        make(2, keys, 5, values),
    )
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=heads != keys)


PROGRAMS = {
    "a dropout": (lambda: F.dropout(make(3, 4), 0.5), "native_dropout"),
    "a batch norm": (lambda: nn.BatchNorm2d(3)(make(2, 3, 4, 4)), "cudnn_batch_norm"),
    "an instance norm": (
        lambda: nn.InstanceNorm2d(3, affine=True)(make(2, 3, 4, 4)),
        "cudnn_batch_norm",
    ),
    "a root mean square": (lambda: nn.RMSNorm(6)(make(2, 6)), "_fused_rms_norm"),
    "values of another size": (lambda: attend(values=16), ATTENTION),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_the_operator_of_cuda_and_its_gradient(name):
    program, operator = PROGRAMS[name]
    with record(as_device="cuda") as trace:
        differentiate(program())
    names = [op.op.split(".")[1] for op in trace.ops]
    assert operator in names
    assert f"{operator}_backward" in names


WITHOUT = {
    "a batch norm without images": lambda: nn.BatchNorm1d(3)(make(5, 3)),
    "a batch norm of bfloat16": lambda: nn.BatchNorm2d(3).bfloat16()(
        make(2, 3, 4, 4).bfloat16()
    ),
    "a batch norm without parameters": lambda: nn.BatchNorm2d(3, affine=False)(
        make(2, 3, 4, 4)
    ),
    "a dropout of nothing": lambda: F.dropout(make(3, 4), 0.0),
    "a mask that is trained": lambda: attend(mask=make(4, 5, 5)),
    "heads in groups": lambda: attend(keys=2),
    "heads of an odd size": lambda: attend(width=7, values=7),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_the_fused_operators_do_not_take_runs_others(name):
    with record(as_device="cuda") as trace:
        differentiate(WITHOUT[name]())
    names = {op.op.split(".")[1] for op in trace.ops}
    assert names.isdisjoint({operator for _, operator in PROGRAMS.values()})


def test_a_mask_is_padded_to_a_multiple_of_eight():
    # 1 x 12 x 197 x 197, of a vision transformer, became 1 x 12 x 197 x 200.
    with record(as_device="cuda") as trace:
        attend(mask=torch.randn(2, 4, 5, 5))
    (padded,) = (op for op in trace.ops if op.op == "aten.constant_pad_nd.default")
    assert padded.outputs[0].shape == (2, 4, 5, 8)


NORMS = {
    "a batch norm": lambda: nn.BatchNorm2d(3),
    "a batch norm in eval mode": lambda: nn.BatchNorm2d(3).eval(),
    "a root mean square": lambda: nn.RMSNorm(4),
}


@pytest.mark.parametrize("name", NORMS)
def test_values_are_those_of_the_cpu(name):
    def run():
        torch.manual_seed(3)
        a, norm = make(2, 3, 4, 4), NORMS[name]()
        made = norm(a)
        (made * made).sum().backward()
        gradients = [a.grad, *(p.grad for p in norm.parameters())]
        return [t.tolist() for t in (made.detach(), *gradients, *norm.buffers())]

    wanted = run()
    with record(as_device="cuda"):
        met = run()
    for one, other in zip(met, wanted, strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5)


HALVED = {
    **NORMS,
    "a layer norm": lambda: nn.LayerNorm(4),
    "a layer norm without parameters": lambda: nn.LayerNorm(
        4, elementwise_affine=False
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVED)
def test_losses_of_norms_in_half_precision_are_those_of_the_cpu(name, dtype):
    def run():
        torch.manual_seed(7)
        norm, a = HALVED[name]().to(dtype), torch.randn(2, 3, 5, 4).to(dtype)
        a.requires_grad_()
        loss = norm(a).float().pow(2).sum()
        loss.backward()
        return loss.item(), a.grad.float().tolist()

    wanted = run()
    with record(as_device="cuda"):
        met = run()
    assert met[0] == pytest.approx(wanted[0])
    assert torch.allclose(torch.tensor(met[1]), torch.tensor(wanted[1]), atol=1e-3)


# Kernels are those of the place of a tensor where the code named one


OTHER = {"cpu": "cuda", "cuda": "cpu"}


@pytest.mark.parametrize("place", OTHER)
def test_attention_is_that_of_a_place(place):
    with record(as_device=OTHER[place]) as trace:
        x = torch.ones(1, 2, 8, 16, device=place)
        F.scaled_dot_product_attention(x, x, x)
    (call,) = [call for call in trace.ops if "attention" in call.op]
    assert ("for_cpu" in call.op) == (place == "cpu")


@pytest.mark.parametrize("place", OTHER)
def test_an_optimizer_takes_the_implementation_of_a_place(place):
    with record(as_device=OTHER[place]) as trace:
        model = nn.Linear(3, 2, device=place)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4, 3, device=place)).sum().backward()
        optimizer.step()
    is_foreach = any("_foreach_" in call.op for call in trace.ops)
    assert is_foreach == (place == "cuda")


def list_dtypes(place):
    """Return what a linear layer gives under autocast of each device."""
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    if place:
        model, x = model.to(place), x.to(place)
    dtypes = []
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float16)):
        with torch.autocast(device, dtype=dtype):
            dtypes.append(model(x).dtype)
    return dtypes


@pytest.mark.parametrize("device", OTHER)
def test_autocast_casts_what_lies_on_its_device(device):
    with record(as_device=device):
        assert list_dtypes("cpu") == [torch.bfloat16, torch.float32]
        assert list_dtypes("cuda") == [torch.float32, torch.float16]


def test_groups_of_channels_that_come_last_are_those_of_a_place():
    def normalize(device):
        x = torch.ones(2, 4, 3, 3, device=device)
        return F.group_norm(x.contiguous(memory_format=torch.channels_last), 2).stride()

    # On CUDA as on meta, where they came first in torch 2.13, and come last in 2.15.
    on_cpu, on_meta = normalize("cpu"), normalize("meta")
    with record(as_device="cuda"):
        assert normalize("cpu") == on_cpu
        assert normalize("cuda") == on_meta


# On which device results lie: as FakeTensorMode says, which needs no GPU for it


DEVICES = ("cuda:0", "cuda:1", "cpu")
CASES = {
    "add": lambda a, b: torch.rand(3, device=a) + torch.rand(3, device=b),
    "mm": lambda a, b: torch.rand(3, 3, device=a) @ torch.rand(3, 3, device=b),
    "a number": lambda a, b: torch.rand(3, device=a) * torch.rand((), device=b),
    "two numbers": lambda a, b: torch.rand((), device=a) * torch.rand((), device=b),
    "where": lambda a, b: torch.where(
        torch.rand(3, device=a) > 0, torch.rand(3, device=b), 0.0
    ),
    "embedding": lambda a, b: torch.nn.functional.embedding(
        torch.zeros(2, dtype=torch.long, device=a), torch.rand(3, 4, device=b)
    ),
    "to other": lambda a, b: torch.rand(3, device=a).to(torch.rand(3, device=b)),
    "new_zeros": lambda a, b: torch.rand(3, device=a).new_zeros(2, device=b),
    "dropout": lambda a, b: torch.nn.functional.dropout(torch.rand(3, device=a)).to(b),
}


def device_of(make, first, second):
    """Return the device of what a function makes, or that it refuses."""
    try:
        return make(first, second).device
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("name", CASES)
def test_results_lie_where_torch_puts_them(name):
    pairs = [*itertools.product(DEVICES, DEVICES)]
    with FakeTensorMode():
        wanted = {pair: device_of(CASES[name], *pair) for pair in pairs}
    with record():
        found = {pair: device_of(CASES[name], *pair) for pair in pairs}
    assert found == wanted


def test_a_tensor_without_a_place_joins_any():
    with record():
        made = torch.rand(3, device="cuda") + torch.rand(3)
        assert made.device == torch.device("cuda", 0)


@pytest.mark.parametrize("devices", [*itertools.product(DEVICES, DEVICES)])
def test_a_copy_lies_where_it_is_written(devices):
    with record():
        written = torch.rand(3, device=devices[0])
        assert written.copy_(torch.rand(3, device=devices[1])) is written
        assert written.device == torch.device(devices[0])


@pytest.mark.parametrize("devices", [*itertools.product(DEVICES, DEVICES)])
def test_an_index_lies_on_the_cpu_or_with_what_it_is_for(devices):
    def take(a, b):
        return torch.rand(3, device=a)[torch.zeros(2, dtype=torch.long, device=b)]

    first, second = devices
    with record():
        found = device_of(take, first, second)
    is_fine = second in ("cpu", first)
    assert found == (torch.device(first) if is_fine else "refused")


@pytest.mark.parametrize("cache", [True, False])
def test_a_cache_hit_puts_its_result_where_its_arguments_are(cache):
    with record(cache=cache):
        made = [
            (torch.rand(3, device=device) * 2 + 1).device
            for device in ("cuda:1", "cpu", "cuda:1", "cpu")
        ]
    assert made == [torch.device(d) for d in ("cuda:1", "cpu", "cuda:1", "cpu")]
