"""What is advised on real models: what they do waste, and nothing else."""

from pathlib import Path

import nbformat
import pytest

from meta_magic import record
from meta_magic.cost.advice.advisors import find_advice
from tests.benchmarks.models import CELLS
from tests.conformance.memory_models import MODELS
from tests.conformance.memory_scripts import SCRIPTS
from tests.conformance.memory_traps import TRAPS

pytest.importorskip("transformers")

ADVISED = {
    # 1,024 tokens with dropout in attention, which no kernel of the CPU has; and their
    # activations are half of the peak.
    ("gpt2-training", "cpu"): {"activations", "attention"},
    ("leak", "cpu"): {"leak"},
    ("foreach", "cpu"): {"foreach"},
    # A head that is made to be tied; 8,192 tokens with all activations kept.
    ("01-quickstart", 2): {"tying"},
    ("01-quickstart", 6): {"activations"},
    # AdamW takes all parameters of a model of 7 billion at once.
    ("07-will-it-fit", 4): {"foreach"},
    # Dropout in attention of an encoder that trains: no kernel of the CPU has that.
    ("08-meta-device", 17): {"attention"},
}
BOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))


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


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_cells_of_the_notebooks(path, shell):
    found = {}
    cells = [c for c in nbformat.read(path, as_version=4).cells if "source" in c]
    codes = [cell for cell in cells if cell.cell_type == "code"]
    for number, cell in enumerate(codes, start=1):
        source, tags = cell.source, cell.metadata.get("tags", ())
        result = shell.run_cell(source)
        assert result.success is ("raises-exception" not in tags)
        if source.startswith("%%meta"):
            kinds = kinds_of(shell.user_ns["_meta"])
            found |= {(path.stem, number): kinds} if kinds else {}
    assert found == {k: v for k, v in ADVISED.items() if k[0] == path.stem}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program", [*MODELS, *SCRIPTS, *TRAPS], ids=lambda program: program.__name__
)
def test_programs_whose_memory_is_compared(program):
    with record(as_device="cpu") as trace:
        kept = program()
    del kept
    assert kinds_of(trace) == ADVISED.get((program.__name__, "cpu"), set())
