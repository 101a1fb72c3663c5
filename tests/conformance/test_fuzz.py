"""Random programs, recorded, do what they do on the CPU, to the bit."""

import pytest
import torch

from tests.conformance.fuzz.checking import check
from tests.conformance.fuzz.findings import worst
from tests.conformance.fuzz.programs import Program, Statement, make_program
from tests.conformance.fuzz.reducing import reduce, render

SEED = 12
N_PROGRAMS = 32

FAILURES = frozenset({"silent", "crashed"})
"""Refusals, ours and those of the CPU alone, are counted by hand."""


@pytest.mark.parametrize("number", range(N_PROGRAMS))
def test_a_recorded_program_is_the_program_that_the_cpu_runs(number):
    torch.set_num_threads(1)
    program = make_program(SEED, number)
    finding = worst(check(program))
    if finding is not None and finding.kind in FAILURES:
        pytest.fail(render(*reduce(program, finding)), pytrace=False)


def test_a_program_is_the_same_for_the_same_numbers():
    assert make_program(SEED, 7) == make_program(SEED, 7)
    assert make_program(SEED, 7) != make_program(SEED, 8)


def test_what_differs_is_found_and_reduced_to_the_statements_that_make_it():
    lines = ["t1 = torch.ones(2)", "t2 = t1 + 1", "v3 = t1.is_meta", "t4 = t2.sum()"]
    program = Program(tuple(Statement(line, 0) for line in lines), seed=0)
    finding = worst(check(program))
    assert (finding.kind, finding.text) == ("silent", "v3 is True, not False")
    short, _ = reduce(program, finding)
    assert [s.text for s in short.statements] == ["t1 = torch.ones(2)", lines[2]]


@pytest.mark.parametrize("name", ["svdvals", "matrix_rank", "eigvalsh", "eigvals"])
@pytest.mark.parametrize("is_wanted", [False, True])
def test_vectors_that_only_a_mode_asks_for_are_no_difference(name, is_wanted):
    lines = [
        f"t1 = torch.eye(3, requires_grad={is_wanted})",
        f"t2 = torch.linalg.{name}(t1)",
    ]
    program = Program(tuple(Statement(line, 0) for line in lines), seed=0)
    assert check(program) == []


BELOW_A_MODE = {
    "history of a view": "t1.view(1, -1).diagonal().expand(2, 1).reshape(-1)",
    "copy of a gradient": (
        "t1.mT.clone().requires_grad_()\nt2.double().prod().backward()"
    ),
}


@pytest.mark.parametrize("name", BELOW_A_MODE)
def test_what_torch_does_otherwise_below_any_mode_is_no_difference(name):
    source = f"t1 = torch.rand(2, 4).requires_grad_()\nt2 = {BELOW_A_MODE[name]}"
    lines = tuple(Statement(line, 0) for line in source.splitlines())
    assert check(Program(lines, seed=0)) == []
