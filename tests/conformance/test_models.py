"""Architectures of transformers run under ``record()``, and as the CPU runs them.

A part of ``python -m tests.conformance.model_sweep``, whose table the README keeps.
"""

from itertools import cycle
from pathlib import Path

import pytest
import torch

import meta_magic as mm
from tests.conformance.model_runs import (
    find_call,
    in_child,
    list_real,
    list_recorded,
    run,
)
from tests.conformance.model_sweep import find_difference, warm_up
from tests.conformance.script_cells import read_cells
from tests.conformance.script_runs import Limits, Script
from tests.conformance.script_sweep import check

NAMES = """
bart clip deberta-v2 deepseek_v3 gpt2 llama mamba2 mixtral swin wav2vec2
"""


@pytest.fixture(scope="module", autouse=True)
def _warm():
    warm_up()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*zip(NAMES.split(), cycle([torch.float32, torch.bfloat16]))],
    ids=str,
)
def test_an_architecture_runs_and_is_recorded_as_the_cpu_runs_it(name, dtype):
    call, why = in_child(find_call, name, dtype)
    assert call is not None, why or f"no forward of {name} is known"
    assert not in_child(run, call, mm.record)[1]
    real, _ = in_child(list_real, call)
    recorded, why = in_child(list_recorded, call)
    assert recorded is not None, why
    assert not find_difference(real, recorded)


# Scripts in the style of tutorials of 2017 to 2020, for real and under ``%%meta``


FOLDER = Path(__file__).parent / "scripts"
LIMITS = Limits(60.0, 16 * 2**30)

each_script = pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem
)


def read_script(path):
    return Script(FOLDER, path, tuple(read_cells(path)))


# Of torch's own, which it gives for real as well.
@pytest.mark.filterwarnings("default:Converting a tensor with requires_grad")
@each_script
def test_a_script_prints_under_meta_what_it_prints_for_real(path):
    (cell,) = check(read_script(path), LIMITS)
    assert (cell.found, cell.reason) == ("same", "")


@pytest.mark.parametrize(
    ("cell", "outcome"),
    [
        ("print(torch.ones(1).is_meta)", ("other", "'False' is 'True'")),
        ("assert not torch.ones(1).is_meta", ("refused", "AssertionError:")),
        ("print(torch.rand(2))", ("same", "")),
    ],
)
def test_a_cell_that_differs_under_meta_is_found(cell, outcome, tmp_path):
    script = Script(tmp_path, tmp_path / "script.py", (f"import torch\n{cell}",))
    assert [(cell.found, cell.reason) for cell in check(script, LIMITS)] == [outcome]
