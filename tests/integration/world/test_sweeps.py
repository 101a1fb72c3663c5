"""Sweeps of sizes and meshes: each row is what a recording of its own says."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from meta_magic import TrialError, record, record_ranks, sweep_ranks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SHARDED = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
tp = int(sys.argv[sys.argv.index("--tp") + 1])
batch = 2
dist.init_process_group("gloo")
names = ("dp", "tp")
mesh = init_device_mesh("cpu", (8 // tp, tp), mesh_dim_names=names)
model = nn.Linear(64, 128, bias=False)
parallelize_module(model, mesh["tp"], ColwiseParallel())
y = model(torch.ones(batch, 64))
dist.all_reduce(y, group=mesh.get_group("dp"))
"""
HANG = """
import torch, torch.distributed as dist
n = 1
dist.init_process_group("gloo")
for _ in range(n if dist.get_rank() == 0 else 1):
    dist.all_reduce(torch.ones(3))
"""


def test_each_mesh_of_a_script_is_a_recording(script):
    path = script(SHARDED)
    vary = {"--tp": [2, 4], "batch": [2, 16]}
    table = sweep_ranks(path, 8, vary, "h100-sxm", ranks=[0])
    tp, batch = table["--tp"], table["batch"]
    assert [*zip(tp, batch, strict=True)] == [(2, 2), (2, 16), (4, 2), (4, 16)]
    # A rank gets a shard of (128, 64), and sends its part of (batch, 128).
    sent = 4 * 64 * 128 // tp + 4 * batch * 128 // tp
    assert (table["sent_nbytes"] == sent).all()
    assert (table["flops"] == 2 * batch * 64 * 128 // tp).all()
    assert table["fits"].all()
    alone = record_ranks(path, 8, [0], args=["--tp", "4"])[0]
    assert table["peak_nbytes"][2] == alone.memory.peak_nbytes


def test_a_mesh_that_cannot_be_and_one_that_hangs_are_rows_with_the_reason(script):
    path = script(SHARDED)
    table = sweep_ranks(path, 8, {"--tp": [8, 16]}, "h100-sxm", ranks=[0])
    assert table["error"].isna().tolist() == [True, False]
    assert "rank 0, line 10: " in table["error"][1]
    assert table["fits"].tolist() == [True, False]
    table = sweep_ranks(script(HANG), 4, {"n": [1, 2]}, "h100-sxm")
    assert table["error"].isna().tolist() == [True, False]
    assert "collective 2: rank 0 calls all_reduce" in table["error"][1]


def test_an_argument_of_a_script_is_any_number_or_text(script):
    text = "import sys, torch\ndtype = getattr(torch, sys.argv[2])\n"
    text += "x = torch.ones(8 << int(sys.argv[4]), dtype=dtype)"
    vary = {"--dtype": ["bfloat16", "float32"], "--more": [0, 1]}
    table = sweep_ranks(script(text), 2, vary, "h100-sxm", ranks=[0])
    assert table["peak_nbytes"].tolist() == [16, 32, 32, 64]


def test_a_rank_that_takes_too_long_is_a_row_with_the_reason(script):
    path = script("import time\nn = 1\ntime.sleep(n)")
    table = sweep_ranks(path, 2, {"n": [100, 1]}, "h100-sxm", ranks=[0], timeout=8)
    assert "it took more than 8 s" in table["error"][0]
    assert table["error"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"size": [1]}, "has no variable 'size'; an argument begins with '-'"),
        ({"n": [0]}, "n=.0.: a sweep needs positive integers"),
        ({"n": "12"}, "n='12': a sweep needs positive integers"),
        ({"n": [True]}, "n=.True.: a sweep needs positive integers"),
        (
            {"n": range(1, 200), "--m": range(1, 200)},
            "39,601 combinations are too many",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_at_once(script, vary, message):
    with pytest.raises(TrialError, match=message):
        sweep_ranks(script(HANG), 4, vary, "h100-sxm")


def test_a_cell_of_a_world_is_swept_with_choices(shell):
    shell.run_cell(
        "%%meta -q --world 4\n"
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "width, rows = 8, 3\n"
        "model = torch.nn.Linear(width, width, bias=False)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(rows, width)).sum().backward()\n"
        "dist.all_reduce(model.weight.grad)\n"
        "optimizer.step()"
    )
    trace = shell.user_ns["_meta"]
    table = trace.sweep(width=[8, 16], choices=[(), ("sgd",)])
    assert table["width"].tolist() == [8, 16, 8, 16]
    assert table["choices"].tolist() == ["", "", "sgd", "sgd"]
    assert table["sent_nbytes"].tolist() == [4 * 64, 4 * 256] * 2
    with record(world=4) as again:
        dist.init_process_group("gloo")
        model = nn.Linear(16, 16, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(3, 16)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
    peaks = table["peak_nbytes"]
    assert peaks[1] == again.memory.peak_nbytes
    assert table["flops"][1] == again.flops
    assert peaks[3] < peaks[1]
