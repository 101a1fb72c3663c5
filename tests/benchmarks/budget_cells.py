"""What has a budget: the benchmark's cells, a construction, and a materialization."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import torch
from torch import nn

import meta_magic as mm
from tests.benchmarks.counts import Count, count_calls
from tests.benchmarks.models import CELLS, Cell, Workload
from tests.benchmarks.recorders import forget_signatures

CONSTRUCTION: Final = "gpt2-construction"
MATERIALIZATION: Final = "gpt2-materialize"


def build_gpt2() -> nn.Module:
    """GPT-2's twelve layers, so narrow that real ones are there at once."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=48, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def build_construction() -> Workload:
    """Build a model, which is initialized as it is built."""
    model = build_gpt2()
    return Workload(model=model, inputs=(), run=build_gpt2, is_forward=False)


RECORDED: Final = (*CELLS, Cell(name=CONSTRUCTION, build=build_construction))

NAMES: Final = (*(cell.name for cell in RECORDED), MATERIALIZATION)


def record(run: Callable[[], object]) -> None:
    """Record for the CPU, also where there is a GPU."""
    with mm.record(as_device="cpu"):
        run()


def count_recordings(cell: Cell) -> Iterator[tuple[str, Count]]:
    """Yield the counts of a cell's recording, cold and warm.

    Cold is without signatures. All that is imported on first use is there in both.
    """
    with torch.device("meta"):
        workload = cell.build()
        workload.run()
    record(workload.run)
    forget_signatures()
    yield f"{cell.name}, cold", count_calls(lambda: record(workload.run))
    yield f"{cell.name}, warm", count_calls(lambda: record(workload.run))


def materialize(model: nn.Module) -> None:
    """Make a model real on the CPU, with the values that its code would give it."""
    mm.materialize(model, "cpu")


def count_materialization() -> Count:
    """Return the count of a replay, without the recording before it."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)  # else the second begins with what the first draws
        with mm.record(as_device="cpu"):
            models.append(build_gpt2())
    first, second = models
    materialize(first)
    return count_calls(lambda: materialize(second))


def count_cells(names: Collection[str]) -> Iterator[tuple[str, Count]]:
    """Yield what was counted, under the names that the budgets have."""
    for cell in RECORDED:
        if cell.name in names:
            yield from count_recordings(cell)
    if MATERIALIZATION in names:
        yield MATERIALIZATION, count_materialization()
