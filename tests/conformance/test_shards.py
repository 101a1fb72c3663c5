"""Models that each process of torchrun materializes in shards, beside real ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sharded_models.py")
ROOT = SCRIPT.parent.parent.parent

pytestmark = pytest.mark.usefixtures("forked_pythons")


def run(n_processes, plan, *folder):
    """Return what each process found."""
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={n_processes}", str(SCRIPT), plan, *folder),
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]


@pytest.mark.parametrize(
    ("n_processes", "plan"),
    [
        (2, "fsdp"),
        (4, "fsdp and tp"),
        pytest.param(4, "fsdp", marks=pytest.mark.sweep),
        pytest.param(4, "hsdp", marks=pytest.mark.sweep),
        pytest.param(2, "tp", marks=pytest.mark.sweep),
    ],
)
def test_shards_are_those_of_the_model_in_one_process(n_processes, plan):
    found = run(n_processes, plan)
    assert len(found) == n_processes
    for one in found:
        assert one["differ"] == []
        assert one["losses"] == 0.0
        assert one["is_same_stream"]
        # The shards, a whole parameter, and a part of it on the way to a shard.
        assert one["peak"] <= one["held"] + 1.5 * one["largest"]


@pytest.mark.parametrize(
    ("n_processes", "plan"),
    [
        (2, "fsdp"),
        pytest.param(4, "fsdp and tp", marks=pytest.mark.sweep),
        pytest.param(4, "hsdp", marks=pytest.mark.sweep),
        pytest.param(2, "tp", marks=pytest.mark.sweep),
    ],
)
def test_each_process_reads_its_shards_of_a_checkpoint(n_processes, plan, tmp_path):
    found = run(n_processes, plan, str(tmp_path))
    assert [(one["differ"], one["n"]) for one in found] == [([], 20)] * n_processes
