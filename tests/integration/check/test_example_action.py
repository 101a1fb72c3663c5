"""The step of ``.github/examples/check.yml`` that checks, run as it is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / ".github" / "examples" / "check.yml"
MODEL = """\
import torch


def build():
    return torch.nn.Linear({}, 10)
"""
TRAIN = """\
import torch
from model import build

build()(torch.zeros(8, 784)).sum().backward()
"""


def read_steps():
    (job,) = yaml.safe_load(EXAMPLE.read_text("utf-8"))["jobs"].values()
    return job["steps"]


def run_step(folder, more=""):
    """Run the step in a folder; the command is this checkout's."""
    (step,) = (step for step in read_steps() if step.get("name") == "Check")
    line = step["run"].replace("meta-magic check", '"$0" -m meta_magic check')
    return subprocess.run(
        ["bash", "-e", "-c", f"{line.rstrip()} {more}", sys.executable],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    ).returncode


def test_the_step_fails_on_a_wrong_shape_and_annotates_its_line(
    tmp_path, forked_pythons
):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text(MODEL.format(784))
    assert run_step(tmp_path, "--update") == 0
    (tmp_path / "model.py").write_text(MODEL.format(72))
    assert run_step(tmp_path) == 1
    (run,) = json.loads((tmp_path / "meta-magic.sarif").read_text())["runs"]
    places = {
        (
            result["level"],
            place["artifactLocation"]["uri"],
            place["region"]["startLine"],
        )
        for result in run["results"]
        for place in (one["physicalLocation"] for one in result["locations"])
    }
    assert ("error", "train.py", 4) in places
    assert ("note", "model.py", 1) in places  # its parameters are fewer than they were


def test_what_the_step_writes_is_what_the_next_ones_read():
    (upload,) = (s for s in read_steps() if "upload-sarif" in s.get("uses", ""))
    (step,) = (step for step in read_steps() if step.get("name") == "Check")
    assert f"--sarif {upload['with']['sarif_file']}" in step["run"]
