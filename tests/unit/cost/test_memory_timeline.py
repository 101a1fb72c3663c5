"""Bytes after each operator call, by device and use; storages at one moment."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.cost import storage_lives
from meta_magic.cost.program_columns import KEPT
from meta_magic.cost.storage_lives import find_saved_slots


def test_bytes_are_those_alive_after_each_operator():
    with record() as trace:
        x = torch.ones(100)  # 400 bytes
        y = x + 1
        del x
        z = y[:50] * 2
    assert trace.memory.live_nbytes == (400, 800, 400, 600)
    assert (trace.memory.peak_nbytes, trace.memory.peak_index) == (800, 1)
    assert len(z) == 50


def test_a_variable_of_a_constructor_takes_no_bytes_once_it_is_replaced():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            mask = torch.ones(25)
            mask = torch.cat((mask, mask))
            self.register_buffer("mask", mask[:1] + 1)

    with record() as trace:
        Masked()
    # ones, cat, slice, add: while `cat` runs both are alive, then only its result.
    assert trace.memory.live_nbytes == (100, 300, 200, 204)


def test_of_a_call_that_raises_there_is_what_was_alive():
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(3) @ torch.ones(4)
    assert trace.memory.live_nbytes == (12, 28, 28)
    assert len(trace.memory.live_nbytes) == len(trace.ops)


def test_the_headline_says_the_peak():
    with record() as trace:
        torch.ones(1024)
    assert " · peak 4.0 KiB on cpu · " in trace.summary()


@pytest.fixture(scope="module")
def trained():
    with record() as trace:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 8, device="cuda").cpu()).sum().backward()
        optimizer.step()
    return trace


def test_the_table_has_a_row_for_each_operator(trained):
    table = trained.memory.to_pandas()
    assert list(table["op"]) == [call.op for call in trained.ops]
    assert tuple(table["live_nbytes"]) == trained.memory.live_nbytes
    assert tuple(table["gradient"]) == trained.memory.live_by_category["gradient"]
    assert table["cuda:0"].max() == trained.memory.peak_by_place["cuda:0"] == 128


@pytest.mark.parametrize(
    ("device", "place"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("meta", "meta")]
)
def test_code_that_names_no_device_runs_where_its_kernels_are(device, place):
    with record(as_device=device) as trace:
        torch.ones(2)
    assert trace.memory.peak_by_place == {place: 8}


def test_beside_a_named_accelerator_the_rest_lies_on_the_cpu():
    with record(as_device="cuda") as trace:
        torch.ones(2), torch.ones(8, device="cuda")
    assert trace.memory.peak_by_place == {"cuda:0": 32, "cpu": 8}


@pytest.fixture(scope="module")
def live():
    with record() as trace:
        model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 2))
        x = torch.ones(5, 10)
        y = model(x)
    assert y.shape == (5, 2)
    return trace.memory.at(-1)


def test_parameters_and_results_belong_to_their_modules(live):
    assert live.by_module == {(0, "0"): 400 + 200, (0, "1"): 80 + 8 + 40, None: 200}


def test_a_storage_says_which_operator_made_it(live):
    largest = live.storages[0]
    assert (largest.nbytes, largest.category, largest.place) == (
        400,
        "parameter",
        "cpu",
    )
    assert (largest.op, largest.index) == ("aten.empty.memory_format", 0)


def test_the_text_says_how_much_of_what_there_is(live):
    # Of operators there are two for each of three parameters, one, and two a layer.
    assert repr(live) == (
        "<LiveStorages: parameter 488 bytes, input 200 bytes, saved 200 bytes, "
        "output 40 bytes after operator 10>"
    )


def test_a_tensor_of_values_lives_from_where_it_is_made():
    with record() as trace:
        x = torch.tensor([1.0, 2.0])
        torch.ones(1)
        x + 1
    assert trace.memory.live_nbytes[-2:] == (12, 16)


A, B = torch.full((7, 1), 0.5), torch.full((7, 3), 0.25)
CALLS = {
    "aten.mse_loss.default": lambda a, b: F.mse_loss(a, b, reduction="sum"),
    "aten.smooth_l1_loss.default": F.smooth_l1_loss,
    "aten.soft_margin_loss.default": F.soft_margin_loss,
    "aten.binary_cross_entropy.default": F.binary_cross_entropy,
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_a_loss_takes_what_it_takes_on_the_cpu(name, reduction):
    call, b = CALLS[name], B
    a = b if name == "aten.binary_cross_entropy.default" else A.expand(7, 3)
    if reduction == "none":
        call = getattr(F, name.split(".")[1])
        real = call(a, b, reduction="none")
    else:
        real = call(a, b)
    with record(as_device="cpu") as trace:
        x, y = torch.ones(a.shape), torch.ones(b.shape)
        if reduction == "none":
            call(x, y, reduction="none")
        else:
            call(x, y)
    index = [c.op for c in trace.ops].index(name)
    (made,) = trace.ops[index].outputs
    live = trace.memory.at(index).storages
    nbytes = next(s.nbytes for s in live if s.storage_id == made.storage_id)
    assert nbytes == real.untyped_storage().nbytes()


def test_a_bag_of_embeddings_takes_what_it_takes_on_the_cpu():
    def run():
        weight, ids = torch.ones(9, 4), torch.zeros(6, dtype=torch.long)
        offsets = torch.zeros(2, dtype=torch.long)
        call = torch.ops.aten._embedding_bag.default
        return call(weight, ids, offsets, False, 1)  # mean

    with record(as_device="cpu") as trace:
        run()
    real = [part.untyped_storage().nbytes() for part in run()]
    live = {s.storage_id: s.nbytes for s in trace.memory.at(-1).storages}
    made = [live.get(part.storage_id, 0) for part in trace.ops[-1].outputs]
    assert made == real


def test_each_that_is_listed_is_an_operator_of_torch():
    for name in KEPT:
        namespace, op, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op)
        assert overload in packet.overloads()


WORKSPACE = 8_519_680  # of a GPU before Hopper: two of 4 MiB, eight of 16 KiB


def test_a_storage_takes_whole_blocks():
    with record() as trace:
        a = torch.ones(1, device="cuda")
        b = torch.ones(129, device="cuda")
        c = torch.ones(0, device="cuda")
    allocated = trace.memory.as_allocated()
    assert allocated.live_nbytes == (512, 512 + 1024, 512 + 1024)
    assert (allocated.place, allocated.workspace_nbytes) == ("cuda:0", 0)
    assert a.numel() + b.numel() + c.numel() == 130


@pytest.mark.parametrize(
    ("major", "nbytes"), [(8, WORKSPACE), (9, 32 * 2**20), (12, 32 * 2**20)]
)
def test_each_thread_that_multiplies_has_a_workspace(major, nbytes):
    with record(as_device="cuda") as trace:
        loss = nn.Linear(2, 2)(torch.ones(1, 2)).sum()
        loss.backward()
    allocated = trace.memory.as_allocated(major=major)
    ops = [call.op for call in trace.ops]
    forward, backward = ops.index("aten.addmm.default"), ops.index("aten.mm.default")
    live = allocated.live_nbytes
    assert live[forward - 1] < nbytes <= live[forward] < 2 * nbytes <= live[backward]
    assert allocated.peak_nbytes == max(live)
    assert allocated.workspace_nbytes == 2 * nbytes


def test_without_a_gpu_it_is_said_how_to_have_one():
    with record(as_device="cpu") as trace:
        torch.ones(1)
    with pytest.raises(ValueError, match="no tensor is on cuda, only on cpu: name a"):
        trace.memory.as_allocated()


def test_what_is_not_counted_is_said():
    with record(as_device="cuda") as trace:
        torch.ones(2, 2) @ torch.ones(2, 2)
    text = str(trace.memory.as_allocated())
    assert text.startswith("cuda:0: 8.1 MiB at the peak, with workspaces of cuBLAS (8")
    assert text.endswith(
        "those of cuDNN are not counted, as their size is not documented"
    )


# What a storage is for: by hand, for each kind


def count(trace, index=None):
    """Return the bytes of each category at a call; at the last one if None."""
    return dict(trace.memory.at(-1 if index is None else index).by_category)


def test_a_layer_that_was_trained():
    with record() as trace:
        layer = nn.Linear(10, 10)  # 110 elements
        x = torch.ones(5, 10)
        optimizer = torch.optim.Adam(layer.parameters())
        loss = layer(x).sum()
        loss.backward()
        optimizer.step()
    assert count(trace) == {
        "optimizer_state": 2 * 440 + 2 * 4,  # and a count of steps for each
        "parameter": 440,
        "gradient": 440,
        "input": 200,
        "output": 4,
    }


def test_what_is_saved_is_known_without_a_backward_pass():
    with record() as trace:
        loss = nn.Sequential(nn.Linear(10, 10), nn.ReLU())(torch.ones(5, 10)).sum()
    assert count(trace) == {"parameter": 440, "input": 200, "saved": 200, "output": 4}
    assert loss.ndim == 0


def test_of_a_product_with_a_frozen_weight_the_other_factor_is_not_saved():
    with record() as trace:
        first, second = nn.Linear(10, 10), nn.Linear(10, 10).requires_grad_(False)
        y = second(first(torch.ones(5, 10)))
    assert "saved" not in count(trace)
    assert y.ndim == 2


def test_buffers_are_known_of_a_module_that_is_gone():
    with record() as trace:
        nn.BatchNorm1d(10, affine=False)  # two of 40 bytes, and a count of 8
        layer = nn.BatchNorm1d(10, affine=False)
    index = next(i for i, n in enumerate(trace.memory.live_nbytes) if n == 88)
    assert count(trace, index)["buffer"] == 88
    assert layer.num_features == 10


@pytest.fixture(scope="module")
def addmm():
    with record() as trace:
        torch.addmm(torch.ones(4), torch.ones(2, 3), torch.ones(3, 4))
    return trace


@pytest.mark.parametrize("needed", [*product((False, True), repeat=3)])
def test_what_is_known_is_what_autograd_answers(addmm, monkeypatch, needed):
    (signature,) = [s for s in addmm.program.signatures if s.op == storage_lives.ADDMM]
    known = find_saved_slots(signature, needed)
    monkeypatch.setattr(storage_lives, "ADDMM", "")
    assert known == find_saved_slots(signature, needed)


def test_parameters_that_fully_shard_gathers_are_told_apart(shell):
    shell.run_cell("from torch.distributed.fsdp import fully_shard")
    shell.run_cell_magic(
        "meta",
        "--world 4 --as cuda",
        "torch.distributed.init_process_group()\n"
        "model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64))\n"
        "for layer in model:\n"
        "    fully_shard(layer)\n"
        "fully_shard(model)\n"
        "model(torch.ones(8, 64)).sum().backward()",
    )
    memory = shell.user_ns["_meta"].memory
    weight, second = 64 * 64 * 4, (64 * 64 + 64) * 4
    held = memory.live_by_category
    # The first layer is whole when the second one is gathered: a buffer that all ranks
    # fill, and the parameters that are copied from it.
    assert max(held["unsharded"]) == weight + 2 * second
    assert held["unsharded"][-1] == 0
    assert held["parameter"][-1] == (weight + second) // 4
    # What was joined to be sent is there until the next step.
    assert held["gradient"][-1] == (weight + second) // 4 + weight
    assert max(held["input"]) == 8 * 64 * 4 + 2 * 16  # and twice the ranks of the mesh
