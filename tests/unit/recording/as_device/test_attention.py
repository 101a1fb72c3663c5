"""Attention as a device runs it: on the CPU compared with the CPU itself."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from meta_magic import record
from meta_magic.recording.as_device.cpu_kernels import adds_batch_to_attention
from tests.unit.eager import Names, assert_same


def make(*shapes, dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


def same(*shape, dtype=torch.float32):
    return make(shape, shape, shape, dtype=dtype)


CALLS = {
    "plain": lambda: (same(1, 2, 4, 8), {}),
    "causal": lambda: (same(1, 2, 4, 8), {"is_causal": True}),
    "dropout": lambda: (same(1, 2, 4, 8), {"dropout_p": 0.1}),
    "true or false": lambda: (
        same(1, 2, 4, 8),
        {"attn_mask": torch.ones(4, 4, dtype=torch.bool)},
    ),
    "a mask of three dimensions": lambda: (
        same(1, 2, 4, 8),
        {"attn_mask": torch.zeros(2, 4, 4)},
    ),
    "grouped heads": lambda: (
        make((1, 4, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)),
        {"enable_gqa": True},
    ),
    "narrow values": lambda: (make((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 6)), {}),
    "three dimensions": lambda: (same(2, 4, 8), {}),
    "three dimensions, a mask of four": lambda: (
        same(2, 4, 8),
        {"attn_mask": torch.zeros(3, 2, 4, 4)},
    ),
    "three dimensions, a row as mask": lambda: (
        same(2, 4, 8),
        {"attn_mask": torch.zeros(4)},
    ),
    "three dimensions by four": lambda: (make((2, 4, 8), *[(1, 2, 4, 8)] * 2), {}),
    "bfloat16": lambda: (same(1, 2, 4, 8, dtype=torch.bfloat16), {}),
    "no tokens": lambda: (same(1, 2, 0, 8), {}),
    "no keys": lambda: (make((1, 2, 4, 8), (1, 2, 0, 8), (1, 2, 0, 8)), {}),
    "heads of nothing": lambda: (same(1, 2, 4, 0), {}),
    "no batch": lambda: (same(0, 2, 4, 8), {"is_causal": True}),
    "values alone": lambda: (make((2, 3, 0), (2, 5, 0), (2, 5, 4)), {}),
    "rows apart": lambda: ([t.mT for t in same(1, 2, 8, 4)], {}),
}


def attend(name):
    tensors, options = CALLS[name]()
    return scaled_dot_product_attention(*tensors, **options)


@pytest.mark.parametrize("name", CALLS)
def test_as_cpu_the_operators_are_those_of_the_cpu(name):
    with Names() as real:
        wanted = attend(name)
    with record(as_device="cpu") as trace:
        met = attend(name)
    assert [op.op for op in trace.ops] == real.ops
    assert (met.shape, met.stride()) == (wanted.shape, wanted.stride())
    assert (met.dtype, met.is_meta) == (wanted.dtype, True)


@pytest.mark.parametrize("batch", [(1,), ()], ids=["batch", "no batch"])
def test_backward_is_that_of_the_same_kernel(batch):
    def step(device):
        shapes = [(*batch, 2, n, 8) for n in (3, 5, 5)]
        tensors = [torch.zeros(s, device=device, requires_grad=True) for s in shapes]
        scaled_dot_product_attention(*tensors).sum().backward()

    with Names() as real:
        step("cpu")
    with record(as_device="cpu") as trace:
        step(None)
    assert [op.op for op in trace.ops] == real.ops


@pytest.mark.parametrize(
    ("dtype", "options", "kernel"),
    [
        # By torch's rules: sdp_utils.cpp, check_tensor_dtype and the order of kernels.
        (torch.bfloat16, {}, "flash"),
        (torch.float16, {"is_causal": True}, "flash"),
        (torch.float16, {"dropout_p": 0.1}, "flash"),
        (torch.float32, {}, "efficient"),
        (torch.bfloat16, {"attn_mask": (4, 4)}, "efficient"),
        (torch.float64, {}, "math"),
    ],
)
def test_as_cuda_the_kernel_is_chosen_by_torchs_rules(dtype, options, kernel):
    with record(as_device="cuda") as trace:
        if "attn_mask" in options:
            options = {"attn_mask": torch.zeros(options["attn_mask"], dtype=dtype)}
        output = scaled_dot_product_attention(*same(1, 2, 4, 8, dtype=dtype), **options)
    assert output.shape == (1, 2, 4, 8)
    names = {op.op for op in trace.ops if "attention" in op.op}
    wanted = f"aten._scaled_dot_product_{kernel}_attention.default"
    assert names == ({wanted} if kernel != "math" else set())


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
def test_the_headline_says_whose_kernels_were_recorded(device):
    with record(as_device=device) as trace:
        torch.ones(2)
    assert trace.summary().startswith(f"1 operator · as on {device} · ")


def test_each_operator_says_which_kernel_was_chosen_and_why():
    with record(as_device="cpu") as trace, torch.no_grad():
        for _ in range(2):  # the second is a cache hit
            attend("plain")
            attend("dropout")
    is_fused = "_scaled_dot_product_flash_attention_for_cpu"
    kernels = [op.kernel for op in trace.ops if op.op == f"aten.{is_fused}.default"]
    assert kernels == ["flash attention, as on cpu"] * 2
    kernels = [op.kernel for op in trace.ops if op.op == "aten.bmm.default"]
    assert kernels == ["math attention, as on cpu: dropout_p is 0.1"] * 4
    assert trace.notes == ()  # models are trained on the CPU with dropout
    assert {op.kernel for op in trace.ops if op.op == "aten.zeros.default"} == {None}


def test_a_line_whose_attention_is_no_fused_kernel_is_noted():
    with record(as_device="cpu") as trace:
        mask = torch.zeros(4, 4, requires_grad=True)
        scaled_dot_product_attention(*same(2, 2, 4, 8), mask)
    (note,) = trace.notes
    assert note.text == (
        "attention runs no fused kernel on cpu, because the mask requires grad"
    )


def test_a_switch_for_kernels_holds_for_a_call_that_was_seen_before():
    with Names() as real, torch.no_grad():
        attend("plain")
        with sdpa_kernel(SDPBackend.MATH):
            attend("plain")
    with record(as_device="cpu") as trace, torch.no_grad():
        attend("plain")
        with sdpa_kernel(SDPBackend.MATH):
            attend("plain")
    assert [op.op for op in trace.ops] == real.ops


def test_without_any_kernel_it_fails_as_on_the_device():
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        with pytest.raises(RuntimeError) as real:
            attend("dropout")
        with pytest.raises(RuntimeError) as met, record(as_device="cpu"):
            attend("dropout")
    assert str(met.value).startswith("No available kernel")
    assert type(real.value) is type(met.value)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients_attention_of_three_dimensions_is_that_of_the_cpu(guard):
    adds_batch_to_attention.cache_clear()  # asked where a recording stands now
    with Names() as real, torch.no_grad():
        attend("three dimensions")
    with record(as_device="cpu") as trace, guard():
        attend("three dimensions")
    names = [op.op for op in trace.ops if op.op != "aten.detach.default"]
    assert names == real.ops


@pytest.mark.parametrize(
    "mask", [torch.float64, torch.bfloat16, torch.int32, torch.float32, torch.bool]
)
@pytest.mark.parametrize("key", [torch.float32, torch.bfloat16])
def test_arguments_that_the_cpu_refuses_are_refused_in_its_words(mask, key):
    def call():
        query, value = make((1, 2, 4, 8), (1, 2, 4, 8))
        keys = torch.zeros(1, 2, 4, 8, dtype=key)
        seen = torch.ones(4, 4).to(mask)
        scaled_dot_product_attention(query, keys, value, seen)

    def say(run):
        try:
            run()
        except RuntimeError as error:
            names = str(error).replace("c10::BFloat16", "torch.bfloat16")
            for name, dtype in (("double", "float64"), ("int", "int32")):
                names = names.replace(f"dtype: {name} ", f"dtype: torch.{dtype} ")
            return names.replace("dtype: float ", "dtype: torch.float32 ")
        return None

    assert_same(lambda: say(call), as_device="cpu")
