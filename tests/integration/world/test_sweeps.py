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
    sweep = sweep_ranks(path, 8, vary, "h100-sxm", ranks=[0])
    values = [tuple(row.sizes.values()) for row in sweep]
    assert values == [(2, 2), (2, 16), (4, 2), (4, 16)]
    for row in sweep:
        tp, batch = row.sizes["--tp"], row.sizes["batch"]
        # A rank gets a shard of (128, 64), and sends its part of (batch, 128).
        assert row.needs.sent_nbytes == 4 * 64 * 128 // tp + 4 * batch * 128 // tp
        assert row.needs.flops == 2 * batch * 64 * 128 // tp
        assert row.fits
    alone = record_ranks(path, 8, [0], args=["--tp", "4"])[0]
    assert sweep[2].needs.peak_nbytes == alone.memory.peak_nbytes


def test_a_mesh_that_cannot_be_and_one_that_hangs_are_rows_with_the_reason(script):
    sweep = sweep_ranks(script(SHARDED), 8, {"--tp": [8, 16]}, "h100-sxm", ranks=[0])
    assert sweep[0].error is None
    assert "rank 0, line 10: " in sweep[1].error
    assert [row.sizes for row in sweep.fitting] == [{"--tp": 8}]
    head, fits, fails = str(sweep).splitlines()
    assert head.split() == ["--tp", "peak", "fits", "time", "exposed", "sent", "error"]
    assert fits.split()[0] == "8"
    assert fails.split()[:3] == ["16", "rank", "0,"]
    table = sweep.to_pandas()
    assert table["error"].isna().tolist() == [True, False]
    sweep = sweep_ranks(script(HANG), 4, {"n": [1, 2]}, "h100-sxm")
    assert sweep[0].error is None
    assert "collective 2: rank 0 calls all_reduce" in sweep[1].error


def test_a_rank_that_takes_too_long_is_a_row_with_the_reason(script):
    path = script("import time\nn = 1\ntime.sleep(n)")
    sweep = sweep_ranks(path, 2, {"n": [100, 1]}, "h100-sxm", ranks=[0], timeout=8)
    assert "it took more than 8 s" in sweep[0].error
    assert sweep[1].error is None


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
    sweep = trace.sweep({"width": [8, 16]}, "h100-sxm", [(), ("sgd",)])
    assert [(row.sizes["width"], row.choices) for row in sweep] == [
        (8, ()),
        (16, ()),
        (8, ("sgd",)),
        (16, ("sgd",)),
    ]
    assert [row.needs.sent_nbytes for row in sweep] == [4 * 64, 4 * 256] * 2
    with record(world=4) as again:
        dist.init_process_group("gloo")
        model = nn.Linear(16, 16, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(3, 16)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
    assert sweep[1].needs.peak_nbytes == again.memory.peak_nbytes
    assert sweep[1].needs.flops == again.flops
    assert sweep[3].needs.peak_nbytes < sweep[1].needs.peak_nbytes
    with pytest.raises(TrialError, match="no name 'height'"):
        trace.sweep({"height": [8]}, "h100-sxm")
