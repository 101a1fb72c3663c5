"""Edits with which a note is gone: tried, and the program is as it was meant."""

import re

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


REWRITTEN = {
    "net.eval\nnet(x)": "net.eval()",
    "net.requires_grad = False\nnet(x)": "net.requires_grad_(False)",
    "x.require_grad = True\nnet(x)": "x.requires_grad = True",
    "target = net\ntarget(x)": "import copy; target = copy.deepcopy(net)",
    "for p in net.parameters():\n    p = p - 0.1 * p": "p.data.copy_(p - 0.1 * p)",
    "y = net(x).max() + 1\nF.mse_loss(net(x).mean(), y)": (
        "y = (net(x).max() + 1).detach()"
    ),
    "z = net.weight.T\nF.cross_entropy(z @ z.T, torch.arange(4))": (
        'F.cross_entropy((z @ z.T).fill_diagonal_(float("-inf")), torch.arange(4))'
    ),
    "cell = nn.GRUCell(4, 4)\nfor step in range(2):\n    h = cell(x + step)": (
        "cell = nn.GRUCell(4, 4); h = None; h = cell(x + step, h)"
    ),
    "e = torch.randn_like(x)\nF.mse_loss(net(x + e) + x, torch.randn_like(x))": (
        "F.mse_loss(net(x + e) + x, e)"
    ),
    "q, k = x[None, None, :2], x[None, None]\n"
    "F.scaled_dot_product_attention(q, k, k, is_causal=True)": (
        "F.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(q.size(-2), "
        "k.size(-2)).bool().tril(k.size(-2) - q.size(-2)))"
    ),
    "y = x.round().long()[None, None]\n"
    'F.interpolate(y.float(), (6, 8), mode="bilinear", align_corners=True).long()': (
        'F.interpolate(y.float(), (6, 8), mode="nearest").long()'
    ),
    "for _ in range(2):\n    x.masked_fill(x > 0, 0)\n    net(x)": (
        "x = x.masked_fill(x > 0, 0)"
    ),
}


@pytest.mark.parametrize("text", REWRITTEN)
def test_a_line_is_written_as_its_note_says(text):
    trace = record_cell(HEAD + NET + text, "<program>")
    repairs = [note.repair for note in note_repairs.repair_notes(trace, trace.wrong)]
    parts = re.split(r"(?:^|; )line \d+: ", repairs[0])
    assert "; ".join(parts[1:]) == REWRITTEN[text]


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
