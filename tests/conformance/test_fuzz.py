"""Random programs, recorded, do what they do on the CPU, to the bit."""

import pytest
import torch

from tests.conformance.fuzz.checking import check
from tests.conformance.fuzz.findings import worst
from tests.conformance.fuzz.programs import make_program
from tests.conformance.fuzz.reducing import reduce, render

SEED = 12
N_PROGRAMS = 300

FAILURES = frozenset({"silent", "crashed"})
"""Refusals, ours and those of the CPU alone, are counted by hand."""


@pytest.mark.parametrize("number", range(N_PROGRAMS))
def test_a_recorded_program_is_the_program_that_the_cpu_runs(number):
    torch.set_num_threads(1)
    program = make_program(SEED, number)
    finding = worst(check(program))
    if finding is not None and finding.kind in FAILURES:
        pytest.fail(render(*reduce(program, finding)), pytrace=False)
