"""Programs that run and are wrong, and right ones that look like them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.cost.wrong.flow import Flow, list_nodes
from tests.conformance.wrong_programs import run_case

WRONG = run_case.read_cases("wrong")
RIGHT = run_case.read_cases("odd")
UNSEEN = {"layers in a dictionary"}
"""The module is gone when the recording ends: nothing is known of its attributes."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*RIGHT])
def test_a_right_program_that_looks_odd_has_no_note(name):
    assert run_case.find_notes(RIGHT[name]) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in WRONG if name not in UNSEEN])
def test_a_wrong_program_is_noted_at_its_line(name):
    text = WRONG[name]
    lines = {n for n, line in enumerate(text.split("\n"), 1) if "# wrong" in line}
    found = run_case.find_notes(text)
    assert lines & {line for note in found for line in (note.line, *note.lines)}


FALSE_BEFORE = {
    "causal mask": lambda: torch.arange(10)[:, None] >= torch.arange(10),
    "labels": lambda: (y := torch.randint(0, 3, (32,))).view(-1, 1) == y,
    "distances": lambda: (
        (s := torch.ones(9, 3).pow(2).sum(1))[:, None] + s - torch.ones(9, 9)
    ),
    "positions": lambda: (
        torch.arange(64).unsqueeze(1) * torch.exp(torch.arange(0, 128, 2) * -0.1)
    ),
    "one_hot": lambda: F.one_hot(torch.arange(5), 5),
    "expand": lambda: torch.ones(5)[:, None].expand(5, 5) * torch.ones(5).expand(5, 5),
    "broadcast_tensors": lambda: torch.broadcast_tensors(
        torch.ones(5)[:, None], torch.ones(5)
    ),
    "a loss of columns": lambda: F.mse_loss(torch.ones(5, 1), torch.ones(5, 1)),
    "a loss of a number": lambda: F.l1_loss(torch.ones(1, 1), torch.ones(1)),
    "a loss to a number": lambda: F.mse_loss(torch.ones(5, 1), torch.ones(1)),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", FALSE_BEFORE)
def test_a_column_and_a_row_that_were_asked_for_are_not_noted(name):
    with record(check=True) as trace:
        FALSE_BEFORE[name]()
    assert [note for note in trace.notes if note.kind != "evaluated"] == []


def test_likely_mistakes_are_noted_where_they_are_asked_for():
    def run():
        torch.ones(4, 8, 8, 3).view(4, 3, 8, 8)

    with record() as trace:
        run()
    with record(check=True) as checked:
        run()
    assert trace.notes == ()
    assert checked.notes == trace.wrong == checked.wrong
    (note,) = checked.notes
    assert (note.kind, note.severity) == ("mixed", "likely")
    assert "(8, 8, 3) are dealt out as (3, 8, 8)" in note.text


def test_a_comment_silences_its_line():
    with record() as trace:
        torch.ones(5, 1) - torch.ones(5)  # meta: ok
        torch.ones(5, 1) - torch.ones(5)
    (note,) = trace.notes
    assert note.line == trace.ops[-1].line


def test_a_note_names_the_line_where_the_module_is_built():
    with record(check=True) as trace:
        layer = nn.Softmax(dim=-1)
        layer(torch.ones(3, 1))
    (note,) = trace.notes
    assert note.line == trace.ops[0].line - 1
    assert note.lines == (trace.ops[0].line,)


def test_layers_in_a_plain_list_are_noted_where_they_are_made():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
            self.hidden = [nn.Linear(2, 2)]
            self.known = nn.Linear(2, 2)
            self.again = [self.known, self.known]

    with record() as trace:
        model = Model()
    (note,) = trace.notes
    assert (note.kind, note.line) == ("unregistered", trace.ops[0].line)
    assert note.text.startswith("Model.layers is a plain list of Linear")
    assert "nn.ModuleList" in note.text
    assert model is not None


@pytest.mark.filterwarnings("ignore")
def test_the_turns_of_a_long_loop_are_noted_as_its_first_ones():
    with record() as trace:
        for _ in range(20):
            scores = torch.randn(2, 6, 8) @ torch.randn(2, 8, 6)
            weights = (scores / 8**0.5).softmax(1)
            weights @ torch.randn(2, 6, 8)
        x = torch.ones(4, 8, 8, 3).view(4, 3, 8, 8)
    assert [note.kind for note in trace.wrong] == ["softmax dimension", "mixed"]
    assert x.shape == (4, 3, 8, 8)


def test_a_source_whose_text_cannot_have_a_mistake_is_not_parsed():
    text = "import torch\nx = torch.ones(3).relu()  # not like another text\n"
    parsed = list_nodes.cache_info().misses
    assert run_case.find_notes(text) == []
    assert list_nodes.cache_info().misses == parsed


def test_rules_read_the_columns_that_the_report_reads():
    with record() as trace:
        torch.ones(3)
    assert Flow(trace).calls.columns is trace.columns


def test_a_call_that_raised_is_not_among_those_that_rules_read():
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(3) + torch.ones(4)
    assert len(Flow(trace).calls) == trace.program.n_calls == 2
