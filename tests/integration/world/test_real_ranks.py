"""verify(world=): real ranks of torchrun beside their plans."""

import json
import subprocess
import sys

import pytest
import torch

from meta_magic import ReplayError, WorldError, record, record_ranks, verify

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(100)
dist.all_reduce(x)
is_real = os.environ["TORCHELASTIC_RUN_ID"] != "plan"
if is_real and sys.argv[1:] == ["differing"]:
    y = torch.zeros(50)
    dist.broadcast(y, 0)
dist.all_reduce(x, op=dist.ReduceOp.MAX if is_real else dist.ReduceOp.SUM)
"""
COMPARE = """
import json, os, meta_magic
rank = int(os.environ["RANK"])
plan = meta_magic.record_ranks("train.py", world=2, ranks=[rank])
found = meta_magic.verify(plan[rank], world=2)
rows = found[["line", "field", "recorded", "real"]].astype(object)
rows = rows.where(rows.notna(), None).to_numpy().tolist()
open(f"{rank}.json", "w").write(json.dumps([rank, rows, found.attrs]))
"""
BLOCK = """
import json, os, torch, torch.distributed as dist, meta_magic
rank = int(os.environ["RANK"])
with meta_magic.record(world=2, rank=rank) as trace:
    dist.init_process_group("gloo")
    x = torch.ones(4)
    dist.all_reduce(x)
n_rows = len(meta_magic.verify(trace, world=2))
open(f"{rank}.json", "w").write(json.dumps([rank, n_rows, x.tolist()]))
"""


def run(path, *args):
    """Return what each of two real processes writes."""
    command = (
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node=2", str(path), *args),
    )
    folder = path.parent
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_real_rank_that_does_otherwise_is_told_by_call_and_bytes(script):
    compare = script(SCRIPT).with_name("compare.py")
    compare.write_text(COMPARE)
    for rank, (number, rows, figures) in enumerate(run(compare, "differing")):
        assert number == rank
        assert rows == [
            [
                *(10, "collective", "all_reduce sum, 400 bytes of float32, ranks 0,1"),
                "broadcast, 200 bytes of float32, ranks 0,1",
            ],
            [
                *(10, "collective", None),
                "all_reduce max, 400 bytes of float32, ranks 0,1",
            ],
            [4, "peak_nbytes", 400, 600],
        ]
        assert figures == {
            "peak_nbytes": 400,
            "real_peak_nbytes": 600,
            "n_sent": 2,
            "n_real_sent": 3,
        }


def test_a_block_runs_again_for_real_in_its_own_process(script):
    assert run(script(BLOCK)) == [[0, 0, [2.0] * 4], [1, 0, [2.0] * 4]]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return what rank 0 of a world of 2 is planned to do."""
    path = tmp_path_factory.mktemp("planned") / "train.py"
    path.write_text(SCRIPT)
    return record_ranks(path, 2, [0])[0]


@pytest.mark.parametrize(
    ("environment", "world", "message"),
    [
        ({}, 2, "torchrun --nproc-per-node=2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, 4, "runs in a world of 2"),
        ({"WORLD_SIZE": "4", "RANK": "0"}, 4, "recorded in one of 2"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, 2, "record it with rank=1"),
    ],
)
def test_a_trace_of_another_process_is_refused(
    environment, world, message, planned, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WorldError, match=message):
        verify(planned, world=world)


def test_a_trace_that_is_no_plan_is_refused(script, monkeypatch):
    with record() as alone:
        torch.ones(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(WorldError, match="the trace has no world"):
        verify(alone, world=2)
    failed = record_ranks(script(SCRIPT + "torch.ones(2) @ torch.ones(3)"), 2, [0])[0]
    with pytest.raises(WorldError, match="did not come to its end: RuntimeError"):
        verify(failed, world=2)
    with pytest.raises(ReplayError, match="leave out device="):
        verify(failed, "cuda", world=2)
