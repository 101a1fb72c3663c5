"""A call that is served gives and records what running its kernel gives and records."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import meta_magic
from meta_magic.recording.intercept import served_functions
from meta_magic.session.record import record
from meta_magic.session.recording import shared_cache_by_device

both = pytest.mark.parametrize("cache", [True, False])


@both
def test_a_complex_tensor_viewed_as_real_is_real_each_time(cache):
    with record(cache=cache):
        x = torch.zeros(3, dtype=torch.complex64)
        views = [torch.view_as_real(x) for _ in range(3)]
    assert [view.dtype for view in views] == [torch.float32] * 3
    assert [tuple(view.shape) for view in views] == [(3, 2)] * 3


@both
def test_a_view_of_another_dtype_has_it_each_time(cache):
    with record(cache=cache):
        views = [torch.zeros(4).view(torch.int32) for _ in range(3)]
    assert [view.dtype for view in views] == [torch.int32] * 3


@both
def test_a_result_saved_for_backward_has_no_history_of_its_own(cache):
    with record(cache=cache):
        results = [torch.tanh(torch.zeros(3, requires_grad=True)) for _ in range(3)]
    saved = [result.grad_fn._raw_saved_result.data for result in results]
    assert [tensor.grad_fn for tensor in saved] == [None] * 3


@both
def test_a_function_that_writes_an_argument_through_a_view_counts_each_time(cache):
    with record(cache=cache):
        table = nn.Embedding(10, 4, max_norm=1.0)
        before, counts = table.weight._version, []
        for _ in range(3):
            table(torch.zeros(2, dtype=torch.long))
            counts.append(table.weight._version - before)
    assert counts == [1, 2, 3]


@both
@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.mm])
def test_one_tensor_read_twice_is_not_mistaken_for_two(function, cache):
    with record(cache=cache) as trace:
        x, y = torch.ones(5, 5), torch.ones(5, 5)
        for other in (x, y, y, x):
            function(x, other)
    read = [[t.tensor_id for t in call.inputs] for call in trace.ops[2:]]
    assert read == [[0, 0], [0, 1], [0, 1], [0, 0]]


@both
def test_out_that_was_an_argument_before_is_not_mistaken_for_it(cache):
    with record(cache=cache) as trace:
        x, y, z = torch.ones(11), torch.ones(11), torch.ones(11)
        torch.mul(x, y, out=x)
        for _ in range(2):
            assert torch.ops.aten.mul.out(x, y, out=z) is z
    first, *others = trace.ops[3:]
    assert [t.tensor_id for t in first.outputs] == [first.inputs[0].tensor_id]
    assert [[t.tensor_id for t in call.outputs] for call in others] == [
        [call.inputs[2].tensor_id] for call in others
    ]
    assert [call.views for call in others] == [(2,), (2,)]


@both
def test_views_of_one_storage_are_not_mistaken_for_two_storages(cache):
    with record(cache=cache) as trace:
        x, y = torch.ones(13), torch.ones(13)
        for source in (x.view(13), y, y):
            x.copy_(source)
    writes = [call for call in trace.ops if call.op == "aten.copy_.default"]
    assert [call.views for call in writes] == [(0,)] * 3
    assert [
        call.inputs[0].storage_id == call.inputs[1].storage_id for call in writes
    ] == [True, False, False]


@both
def test_inference_mode_runs_whole_functions(cache):
    with record(cache=cache):
        for _ in range(3):
            with torch.inference_mode():
                y = nn.functional.linear(torch.ones(3, 4), torch.ones(2, 4))
            z = nn.functional.linear(torch.ones(3, 4), torch.ones(2, 4))
    assert (y.is_inference(), z.is_inference()) == (True, False)


@both
def test_what_inference_mode_taught_does_not_change_what_gradients_need(cache):
    with record(cache=cache):
        weight = torch.ones(2, 4, requires_grad=True)
        for context in (torch.no_grad, torch.enable_grad, torch.no_grad):
            with context():
                y = nn.functional.linear(torch.ones(3, 4), weight)
            assert y.requires_grad == (context is torch.enable_grad)


FIRST_TIME = """
import torch
from meta_magic.session.record import record
traces = []
for _ in range(2):
    x = torch.ones(2, 3, device="meta")
    with record() as trace:
        x.is_conj(), x.numel(), x.dim(), x.is_complex()
        y = torch.ones(2)
        z = torch.sin(y)
    traces.append(trace)
assert list(traces[0].ops) == list(traces[1].ops), (traces[0].ops[0], traces[1].ops[0])
"""


def test_functions_that_make_no_operator_number_no_tensor():
    result = subprocess.run(
        [sys.executable, "-c", FIRST_TIME],
        cwd=Path(meta_magic.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_default_dtype_set_inside_is_honoured_by_known_signatures():
    before = torch.get_default_dtype()
    with record():
        first = torch.ones(2), torch.arange(3) / 2
        torch.set_default_dtype(torch.float64)
        try:
            second = torch.ones(2), torch.arange(3) / 2
        finally:
            torch.set_default_dtype(before)
    assert [t.dtype for t in first] == [torch.float32] * 2
    assert [t.dtype for t in second] == [torch.float64] * 2


def test_what_is_asked_of_torch_for_a_new_signature_is_no_doubt_about_the_cell():
    with record(as_device="cpu") as trace:
        torch.Tensor(7, 11, 13)  # reaches the operator with the function mode on
    assert trace.program.doubts == ()


def test_positions_run_no_kernel_again_and_masks_do(ran):
    with record():
        x, at = torch.ones(7, 5), torch.tensor([1, 4])
        for _ in range(3):
            x[at]
            torch.ops.aten.index.Tensor(x, [None, at])
        n_positions = ran.count("aten.index.Tensor")
        for _ in range(3):
            x[torch.arange(7) > 3]
    n_masks = ran.count("aten.index.Tensor") - n_positions
    assert (n_positions, n_masks) == (2, 3)


def test_a_position_out_of_range_is_refused_each_time():
    with record():
        x, right, wrong = torch.ones(3, 5), torch.tensor([2]), torch.tensor([3])
        for _ in range(3):
            x[right]
            with pytest.raises(IndexError, match="index 3 is out of bounds"):
                x[wrong]


def test_several_views_run_no_kernel_again(ran):
    with record():
        x = torch.ones(6, 7)
        for _ in range(3):
            x.split(2)
            torch.unbind(x)
            torch.chunk(x, 2, 1)
    names = ("split.Tensor", "unbind.int")
    assert [ran.count(f"aten.{name}") for name in names] == [2, 1]


@both
def test_what_is_written_into_one_of_several_views_counts_for_all(cache):
    with record(cache=cache):
        x = torch.zeros(6)
        for n_writes in (1, 2, 3):
            first, second = x.split(3)
            second.add_(n_writes)
            assert (x._version, first._version) == (n_writes, n_writes)
        assert x.tolist() == [0, 0, 0, 6, 6, 6]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x * x,
        lambda x, y: torch.cat([x, y, x]),
        lambda x, y: x + y.clone(),
        functional.linear,
        lambda x, y: functional.linear(x, nn.Parameter(y)),
        lambda x, y: functional.scaled_dot_product_attention(x, x, y),
        lambda x, y: x.transpose(0, 1)[..., 1:],
    ],
)
def test_a_function_is_learnt_once(monkeypatch, call):
    shared_cache_by_device.clear()
    learnt, learn = [], served_functions.learn
    monkeypatch.setattr(
        served_functions, "learn", lambda *given: learnt.append(0) or learn(*given)
    )
    with record(), torch.no_grad():
        x, y = torch.ones(4, 4), torch.ones(4, 4)
        call(x, y)
        n_learnt = len(learnt)
        for _ in range(5):
            call(x, y)
            call(y, x.clone())
    assert n_learnt
    # That ``y`` is a parameter's storage, say, is another case.
    assert len(learnt) <= 2 * n_learnt
