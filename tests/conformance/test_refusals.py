"""A part of what ``refusals`` and ``broken_programs`` sweep."""

import warnings
from itertools import islice

import pytest
import torch

from meta_magic import record
from meta_magic.recording.as_device.oracle import proxy_tensors
from tests.conformance.broken_programs import Case, judge, mend, run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance.refusals import judge_programs
    from tests.conformance.refused_programs import SOURCES

pytestmark = pytest.mark.filterwarnings("ignore")

OPERATORS = (
    "add",
    "addmm",
    "cat",
    "gather",
    "index_add",
    "matmul",
    "nn.functional.conv2d",
    "nn.functional.layer_norm",
    "nn.functional.nll_loss",
    "where",
)
MODULES = ("nn.GRUCell", "nn.Linear", "nn.LayerNorm")
BY_VALUES = ("index", "out of bounds")


def judge_all(source, names, limit=1):
    """Return what ``record()`` does otherwise than the CPU."""
    found = [
        one
        for name, programs in SOURCES[source](limit)
        if name in names
        for one in judge_programs(islice(programs, 6), ("record",))
    ]
    assert found
    return [one for one in found if one.found not in {"same", ""}]


@pytest.mark.parametrize("source", ["operator errors", "changed samples"])
def test_what_the_cpu_refuses_is_refused_in_its_words(source):
    differing = judge_all(source, OPERATORS)
    assert [f for f in differing if not any(w in f.wanted for w in BY_VALUES)] == []


def test_modules_that_the_cpu_refuses_are_refused_in_its_words():
    assert judge_all("module errors", ("nn.GRUCell", "nn.LSTMCell")) == []


@pytest.mark.parametrize("is_shrunken", [False, True])
def test_what_the_cpu_takes_is_taken(is_shrunken, monkeypatch):
    if is_shrunken:
        monkeypatch.setattr(proxy_tensors, "MAX_NUMEL", 128)
        monkeypatch.setattr(proxy_tensors, "KEPT", 2)
    assert judge_all("valid samples", OPERATORS) == []
    assert judge_all("valid modules", MODULES) == []


BROKEN = '''r"""a layer of another size

fix:
  @8
  - y = nn.Linear(4, 2)(x)
  + y = nn.Linear(3, 2)(x)
"""
import torch; from torch import nn; x = torch.ones(5, 3)
y = nn.Linear(4, 2)(x)
'''


def test_a_broken_program_fails_at_its_line_as_on_the_cpu():
    broken = BROKEN.replace("@8", "@9")
    wanted = run(broken, torch.no_grad())
    met = run(broken, record(as_device="cpu"))
    assert wanted.line == 9
    assert judge(Case("a", True, wanted, met)) == "same"


def test_a_mended_program_runs():
    mended = mend(BROKEN.replace("@8", "@9"))
    assert run(mended, record(as_device="cpu")) is None
