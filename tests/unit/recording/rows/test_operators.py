"""What is recorded of an operator call."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import record
from meta_magic.recording.torch_private import meta_kernels, optimizer_module
from tests.unit.recording.as_device.test_attention import Names


def ops_of(trace):
    return [call.op for call in trace.ops]


def test_a_linear_layer_is_a_transpose_and_an_addmm():
    with record() as trace:
        nn.Linear(3, 4)(torch.empty(2, 3))
    assert ops_of(trace)[-2:] == ["aten.t.default", "aten.addmm.default"]


def test_a_view_shares_the_storage_of_its_base():
    with record() as trace:
        torch.empty(2, 3).view(6)
    (base,), (view,) = trace.ops[-1].inputs, trace.ops[-1].outputs
    assert base.storage_id == view.storage_id
    assert base.tensor_id != view.tensor_id
    assert trace.ops[-1].views == (0,)


def test_meta_storages_at_address_zero_are_told_apart():
    with record() as trace:
        a, b = torch.empty(2), torch.empty(2)
        torch.add(a, b)
    left, right = trace.ops[-1].inputs
    assert a.data_ptr() == b.data_ptr() == 0
    assert left.storage_id != right.storage_id


def test_a_storage_number_is_never_given_twice_although_ids_repeat():
    with record() as trace:
        for _ in range(50):
            torch.empty(3)
    numbers = [call.outputs[0].storage_id for call in trace.ops]
    assert len(set(numbers)) == 50


def test_an_in_place_write_names_the_argument_that_it_writes():
    with record() as trace:
        x = torch.zeros(3)
        x.add_(1)
    call = trace.ops[-1]
    assert call.op == "aten.add_.Tensor"
    assert call.writes == (0,)
    assert call.inputs[0].tensor_id == call.outputs[0].tensor_id


def test_an_out_argument_is_a_write():
    with record() as trace:
        torch.add(torch.ones(2), 1, out=torch.empty(2))
    call = trace.ops[-1]
    assert call.op == "aten.add.out"
    assert [call.inputs[i].shape for i in call.writes] == [(2,)]


def test_arguments_are_named_as_in_the_schema():
    with record() as trace:
        torch.ones(2, 3).sum(dim=1, keepdim=True)
    arguments = dict(trace.ops[-1].arguments)
    assert arguments["dim"] == (1,)
    assert arguments["keepdim"] is True
    assert arguments["self"] == trace.ops[-1].inputs[0]


def test_foreach_operators_list_every_tensor():
    with record() as trace:
        torch._foreach_add_([torch.ones(2), torch.ones(3)], 1.0)
    call = trace.ops[-1]
    assert call.op == "aten._foreach_add_.Scalar"
    assert [tensor.shape for tensor in call.inputs] == [(2,), (3,)]
    assert call.writes == (0, 1)


def test_a_backward_operator_names_the_forward_operator_that_it_differentiates():
    with record() as trace:
        x = torch.ones(2, 3, requires_grad=True)
        y = x.exp()
        z = y.sum()
        z.backward()
    forward = {call.op: call.index for call in trace.ops if call.phase != "backward"}
    tied = {call.op: call.forward for call in trace.ops if call.phase == "backward"}
    assert tied["aten.expand.default"] == forward["aten.sum.default"]
    assert tied["aten.mul.Tensor"] == forward["aten.exp.default"]


def test_a_backward_operator_has_the_line_and_module_of_its_forward_one():
    with record() as trace:
        layer = nn.Linear(3, 4)
        loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
    (forward,) = (c for c in trace.ops if c.op == "aten.addmm.default")
    products = [c for c in trace.ops if c.op == "aten.mm.default"]
    assert products
    for call in products:
        assert (call.line, call.module, call.phase) == (forward.line, "", "backward")


def test_the_phases_of_a_training_step():
    with record() as trace:
        layer = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    phase = {call.op: call.phase for call in trace.ops}
    assert phase["aten.uniform_.default"] == "init"
    assert phase["aten.addmm.default"] == "forward"
    assert phase["aten.sum.default"] == "other"
    assert phase["aten.add_.Tensor"] == "optimizer"


def test_the_function_is_the_python_level_call():
    with record() as trace:
        x = torch.ones(2, 3)
        nn.functional.layer_norm(x, (3,))
        x + 1
    assert trace.ops[1].function == "torch.nn.functional.layer_norm"
    assert trace.ops[2].function == "torch.Tensor.add"


def test_the_position_has_columns_of_the_expression():
    with record() as trace:
        x = torch.ones(3)
        y = (x + 1) * 2
    call = trace.ops[1]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = source[call.position.line - 1]
    assert line[call.position.column : call.position.end_column] == "x + 1"
    assert y.is_meta


def test_the_line_is_that_of_the_file_that_records():
    with record() as trace:
        torch.ones(3)
        torch.ones(3)
    first, second = trace.ops
    assert second.line == first.line + 1


def test_real_tensors_are_recorded_with_their_device():
    with record() as trace:
        torch.ones(2, device="cpu") + 1
    assert trace.ops[-1].inputs[0].is_real
    assert trace.nbytes_real == 2 * 4 + 2 * 4


def test_flops_of_a_product_are_two_for_each_multiply_add():
    with record() as trace:
        torch.ones(2, 3) @ torch.ones(3, 5)
    assert trace.ops[-1].flops == 2 * 2 * 3 * 5
    assert trace.ops[0].flops is None


def test_a_failing_block_keeps_what_was_recorded():
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(2, 3)
        torch.ones(2) @ torch.ones(3)
    assert ops_of(trace) == ["aten.ones.default"] * 3
    assert trace.error.startswith("RuntimeError: ")


@pytest.mark.parametrize(
    "index", [0, slice(1, 3), (slice(None), 0), ..., (None, 1), (1, 2)], ids=str
)
@pytest.mark.parametrize("value", [7, 0.5, True, np.float64(2), np.int64(3)], ids=str)
def test_a_number_written_at_an_index_is_the_operator_of_the_cpu(index, value):
    def write():
        x = torch.zeros(4, 4)
        x[index] = value
        return x.sum().item()

    with Names() as real:
        wanted = write()
    with record(as_device="cpu") as trace:
        met = write()
    assert met == wanted
    names = [op.op for op in trace.ops if "lift" not in op.op]
    assert names == [op for op in real.ops if "lift" not in op]


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_a_convolutions_backward_costs_what_torch_counts(needs_grad, bias, trains):
    def step():
        x = torch.randn(2, 3, 4, 4, requires_grad=needs_grad)
        layer = nn.Conv2d(3, 4, 3, bias=bias)
        layer.weight.requires_grad_(trains)
        made = layer(x).sum()
        if made.requires_grad:
            made.backward()

    with FlopCounterMode(display=False) as wanted:
        step()
    with record() as trace:
        step()
    assert trace.flops == wanted.get_total_flops()


def test_recordings_that_overlap_on_two_threads_leave_torch_as_it_was():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, meta_kernels.device_hint),
            optimizer_module._get_fused_kernels_supported_devices,
        ]

    before, events = read(), [threading.Event() for _ in range(3)]

    def first():
        with record():
            events[0].set()
            events[1].wait()
        events[2].set()

    def second():
        events[0].wait()
        with record():
            events[1].set()
            events[2].wait()

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read() == before
