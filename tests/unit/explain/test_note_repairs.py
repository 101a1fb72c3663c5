"""Edits with which a note is gone: tried, and the program is as it was meant."""

import pytest

from meta_magic.explain import note_repairs
from meta_magic.explain.note_repairs import is_merged
from tests.conformance.explanations import record_cell

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def find_repair(text):
    trace = record_cell(HEAD + text, "<program>")
    notes = trace.notes or trace.wrong
    return [
        note.repair.partition(": ")[2] for note in notes if note.kind != "evaluated"
    ]


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (
            "x, y = torch.ones(8, 1), torch.ones(8)\nerror = (x - y).abs()",
            "error = (x.squeeze(-1) - y).abs()",
        ),
        (
            "x, y = nn.Linear(3, 1)(torch.ones(8, 3)), torch.ones(8)\nF.mse_loss(x, y)",
            "F.mse_loss(x.squeeze(-1), y)",
        ),
        (
            "x = nn.Linear(3, 5)(torch.ones(8, 3))\nF.cross_entropy(x.softmax(1), x)",
            "F.cross_entropy(x, x)",
        ),
        (
            "w = torch.rand(4, 3, 1).softmax(-1)\n(w * torch.rand(4, 3, 2)).sum(1)",
            "w = torch.rand(4, 3, 1).softmax(1)",
        ),
    ],
)
def test_the_edit_that_is_meant_is_shown(text, repaired):
    assert find_repair(text) == [repaired]


NET = "net, x = nn.Linear(4, 1), torch.ones(3, 4)\n"
MADE = "opt = torch.optim.Adam(net.parameters())"
CLEAR = "opt.zero_grad()"
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1)"


def write_loop(*lines):
    return "\n    ".join(("for _ in range(2):", *lines))


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (
            f"{NET}{MADE}\n"
            + write_loop(CLEAR, "opt.step()", "net(x).mean().backward()"),
            ["", "net(x).mean().backward(); opt.step()"],
        ),
        (
            NET + write_loop(MADE, CLEAR, "net(x).mean().backward()", "opt.step()"),
            [f"{NET[:-1]}; {MADE}", ""],
        ),
        (
            f"{NET}{MADE}\n"
            + write_loop(
                CLEAR, "loss = net(x).mean()", CLIP, "loss.backward()", "opt.step()"
            ),
            ["", f"loss.backward(); {CLIP}"],
        ),
        (
            "net = nn.Sequential(*[nn.Linear(4, 4)] * 3)\nnet(torch.ones(2, 4))",
            ["net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])"],
        ),
        (
            f"{NET}p = net(x).sigmoid()\nF.binary_cross_entropy(x[:, :1], p)",
            ["F.binary_cross_entropy(p, x[:, :1])"],
        ),
    ],
)
def test_statements_are_moved_and_expressions_rewritten(text, repaired, monkeypatch):
    monkeypatch.setattr(note_repairs, "SECONDS", 60.0)
    monkeypatch.setattr(note_repairs, "MAX_SECONDS", 60.0)
    trace = record_cell(HEAD + text, "<program>")
    (note,) = note_repairs.repair_notes(trace, trace.wrong)
    found = [part.partition(": ")[2] for part in note.repair.split("; line ")]
    assert found == repaired


def test_a_note_without_an_edit_that_helps_has_no_repair():
    x = "x, y = nn.Linear(3, 1)(torch.ones(8, 3)), torch.ones(8, 4)\nF.mse_loss(x, y)"
    assert find_repair(x) == [""]


def test_views_of_whole_dimensions_merge_and_cut():
    assert is_merged((2, 3, 4), (6, 4))
    assert is_merged((2, 3, 4), (2, 12))
    assert is_merged((2, 3, 1), (6,))
    assert not is_merged((2, 3, 4), (3, 8))
    assert not is_merged((6, 4), (2, 12))
