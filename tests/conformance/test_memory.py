"""Memory as recorded is that of a real CPU run; larger programs by ``memory``."""

import pytest

from tests.conformance.memory_models import checkpointing, gan
from tests.conformance.memory_runs import compare_purposes, compare_timelines
from tests.conformance.memory_scripts import SCRIPTS
from tests.conformance.memory_traps import TRAPS, saved_on_the_cpu, sparse_embedding

APART = {
    sparse_embedding: "what tensors of coordinates hold counts when looked at",
    saved_on_the_cpu: "hooks of autograd run past modes, and so copy what is there",
}
"""Programs of other operators than on the CPU, each with the reason."""

PROGRAMS = [p for p in (*TRAPS, *SCRIPTS) if p not in APART]
LARGER = [gan, checkpointing]


def name_of(program):
    return program.__name__


@pytest.mark.parametrize("program", [*PROGRAMS, *LARGER], ids=name_of)
def test_the_same_bytes_are_alive_after_each_operator(program):
    found = compare_timelines(program)
    assert found.n_real == found.n_equal == found.n_recorded
    assert found.peak_nbytes == found.real_nbytes


@pytest.mark.parametrize("program", [*PROGRAMS[::2], gan], ids=name_of)
def test_storages_are_for_what_torch_says(program):
    found = compare_purposes(program)
    assert found.n_aligned == found.n_storages
    assert found.wrong == {}


@pytest.mark.parametrize("program", APART, ids=name_of)
def test_a_program_of_other_operators_still_is_one(program):
    assert not compare_timelines(program).are_equal
