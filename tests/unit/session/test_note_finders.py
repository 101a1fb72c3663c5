"""What a recording says of a cell without being asked."""

import concurrent.futures
import multiprocessing

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.modules import Tied


def notes_of(trace):
    return {note.kind: note for note in trace.notes}


LOSSES = {
    "mse_loss": nn.MSELoss(),
    "l1_loss": nn.L1Loss(),
    "poisson_nll_loss": nn.PoissonNLLLoss(),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_loss_of_a_column_and_a_row_is_noted(name, is_turned):
    # On the CPU mse_loss and its like warn in the same case; the others say nothing.
    given = torch.ones(66, 1, device="meta"), torch.ones(66, device="meta")
    with record() as trace:
        LOSSES[name](*(reversed(given) if is_turned else given))
    (note,) = trace.notes
    assert note.kind in {"loss size", "broadcast"}
    assert note.line == trace.ops[-1].line
    assert " to (66, 66): " in note.text
    assert "(66, 1)" in note.text
    assert "(66,)" in note.text


def test_a_factory_that_ignores_meta_is_noted():
    with record() as trace:
        torch.ops.aten.ones.default([2, 3])
    note = notes_of(trace)["factory"]
    assert note.line == trace.ops[-1].line
    assert "real tensor" in note.text


def test_float64_from_numpy_is_noted():
    import numpy as np

    with record() as trace:
        torch.as_tensor(np.ones(3))
        torch.as_tensor(np.ones(3), dtype=torch.float32)
        torch.tensor(np.ones(3, dtype=np.float32))
    (note,) = trace.notes
    assert (note.kind, note.line) == ("float64", trace.ops[0].line)


def test_a_tie_that_came_apart_is_noted():
    with record() as trace:
        model = Tied()
        model.head.weight = nn.Parameter(model.head.weight.clone())
    note = notes_of(trace)["untied"]
    assert "Embedding.weight and Linear.weight" in note.text
    assert note.line == trace.ops[-1].line


def test_a_tensor_that_will_not_move_with_its_module_is_noted():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(5)

    with record() as trace:
        holders = nn.ModuleList(Holder() for _ in range(3))  # noqa: F841
    (note,) = (note for note in trace.notes if note.kind == "attribute")
    assert "Holder.table" in note.text
    assert note.line == trace.ops[0].line


def test_a_tensor_that_a_class_moves_itself_is_not_noted():
    class Metric(nn.Module):
        def __init__(self):
            super().__init__()
            self.total = torch.zeros(())

        def _apply(self, fn, *args, **kwargs):
            self.total = fn(self.total)
            return super()._apply(fn, *args, **kwargs)

    with record() as trace:
        metric = Metric()
        assert metric.to("cuda").total.is_cuda
    assert "attribute" not in notes_of(trace)


def start_process():
    process = multiprocessing.get_context("fork").Process(target=sum, args=([1],))
    process.start()
    process.join()


def map_in_processes():
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        pool.submit(sum, [1]).result()


@pytest.mark.parametrize("start", [start_process, map_in_processes])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_is_named_as_not_recorded(start):
    code = start.__code__
    before = multiprocessing.process.BaseProcess.start
    with record() as trace:
        x = torch.ones(2)
        start()
    (note,) = trace.notes
    assert note.kind == "process"
    assert "process" in note.text
    assert "was not recorded" in note.text
    assert note.line == code.co_firstlineno + LINES[start.__name__]
    assert multiprocessing.process.BaseProcess.start is before
    assert x.is_meta


LINES = {"start_process": 2, "map_in_processes": 3}
"""On which line of each the process starts."""
