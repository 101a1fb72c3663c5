"""Architectures of transformers run under ``record()``, and as the CPU runs them.

A part of ``python -m tests.conformance.model_sweep``, whose table the README keeps.
"""

from itertools import cycle

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
