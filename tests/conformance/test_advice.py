"""What is advised on real models: what they do waste, and nothing else."""

import pytest

from meta_magic import record
from meta_magic.cost.advice.advisors import find_advice
from tests.benchmarks.models import CELLS
from tests.conformance.memory_models import MODELS, checkpointing_reentrant, gan
from tests.conformance.memory_scripts import SCRIPTS
from tests.conformance.memory_traps import TRAPS

pytest.importorskip("transformers")

ADVISED = {
    # 1,024 tokens with dropout in attention, which no kernel of the CPU has; and their
    # activations are half of the peak.
    ("gpt2-training", "cpu"): {"activations", "attention"},
    # In float32 no fused kernel of CUDA takes heads in groups.
    ("llama-70b", "cuda"): {"attention"},
    ("leak", "cpu"): {"leak"},
    ("foreach", "cpu"): {"foreach"},
}


def kinds_of(trace):
    return {advice.kind for advice in find_advice(trace)}


@pytest.mark.parametrize("as_device", ["cpu", "cuda"])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_models_of_the_benchmarks(cell, as_device):
    with record(as_device=as_device) as trace:
        workload = cell.build()
        output = workload.run()
    del output
    assert kinds_of(trace) == ADVISED.get((cell.name, as_device), set())


SMALL = (*TRAPS, gan, checkpointing_reentrant)
PROGRAMS = [
    pytest.param(
        program, marks=pytest.mark.sweep if number % 3 and program not in SMALL else ()
    )
    for number, program in enumerate([*MODELS, *SCRIPTS, *TRAPS])
]
"""Every third of the large ones; all with ``-m sweep``."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_whose_memory_is_compared(program):
    with record(as_device="cpu") as trace:
        kept = program()
    del kept
    assert kinds_of(trace) == ADVISED.get((program.__name__, "cpu"), set())
