"""Where refused sizes come from, and which written numbers would mend them."""

from dataclasses import replace
from operator import methodcaller

import pytest
import torch

from meta_magic.explain.edited_runs import Workers
from meta_magic.explain.given_names import name_operands
from meta_magic.explain.lineage.formulas import list_units
from meta_magic.explain.probing import Change, Probe
from meta_magic.explain.refused_sizes import RefusedSizes, solve, trace_refused
from meta_magic.trace.signature import TensorArgument
from tests.conformance.explanations import record_cell
from tests.unit.explain.made_situations import make_call

CLASSIFIER = """import torch
from torch import nn
import torch.nn.functional as F
class Classifier(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.conv = nn.Conv2d(1, w, 3)
        self.fc = nn.Linear(400, 10)
    def forward(self, x):
        x = F.max_pool2d(self.conv(x), 2).flatten(1)
        return self.fc(x)
model = Classifier(16)
out = model(torch.randn(4, 1, 14, 14))
"""


@pytest.fixture(scope="module")
def trace():
    return record_cell(CLASSIFIER, "<classifier>")


def test_an_explanation_says_where_both_of_the_sizes_come_from(trace):
    found = trace.explanation
    weight, given = sorted(found.lineages, key=lambda lineage: lineage.size)
    assert given.lines[:3] == (
        "576 = 16 * 6 * 6 by flatten (line 10)",
        "  16 = conv.out_channels, written (line 12)",
        "  6 = 12 // 2 by max_pool2d (line 10)",
    )
    assert weight.lines == ("400 = fc.in_features, written (line 8)",)
    assert given.name == "dimension 1 of x (576)"
    assert "why 400 = fc.in_features, written (line 8)" in found.text


def test_the_lines_of_written_numbers_may_have_the_mistake(trace):
    assert {8, 12, 13} <= {*trace.explanation.culprits}


def test_the_text_is_no_longer_than_a_screen(trace):
    assert len(trace.explanation.text.splitlines()) <= 25


def test_written_numbers_are_solved_for_the_size_that_is_accepted(trace):
    with Workers(None) as workers:
        sight = trace_refused(trace, name_operands(trace, trace.failed), workers)
    solved = {
        (step.line, step.value, value)
        for refused in sight.refused
        for steps, value, _ in solve(refused)
        for step in steps
    }
    assert (8, 400, 576) in solved
    # 400 is no multiple of 36, so no number of channels makes it.
    assert not any(line == 12 and value * 36 == 400 for line, _, value in solved)


def test_a_block_that_cannot_be_run_again_has_no_chains(tmp_path):
    writing = f"open({str(tmp_path / 'made')!r}, 'w').close()\n"
    found = record_cell(writing + CLASSIFIER, "<writes>").explanation
    assert found.lineages == ()
    assert found.rules


def test_a_call_that_was_never_made_has_no_chains():
    trace = record_cell("1 / 0\n", "<nothing>")
    with Workers(None) as workers:
        assert trace_refused(trace, trace.failed, workers) == RefusedSizes({}, ())


def test_tensors_that_are_alike_move_together_in_a_long_list():
    operands = [(f"part{n}", (3, 4)) for n in range(40)]
    parts = [TensorArgument(index=n) for n in range(40)]
    call = replace(make_call(1, operands), args=(parts,))
    rows, columns = list_units(Probe(torch.stack, call), {})
    assert [one.at for one in (rows[0], columns[-1])] == [0, 1]
    assert len(rows) == len(columns) == 40


def test_the_cpu_is_not_asked_for_millions_of_elements_that_become_one():
    asked = []

    def find_loss(a, b):
        asked.append((a.device.type, a.ndim))
        return (a - b).abs().mean()

    call = make_call(1, [("a", (3000,)), ("b", (3001,))])
    call = replace(call, args=(TensorArgument(index=0), TensorArgument(index=1)))
    column = Change("{}.unsqueeze(1)", methodcaller("unsqueeze", 1))
    probe = Probe(find_loss, call, lambda run: run())
    assert probe.accepts(changes={0: column})
    assert ("meta", 2) in asked
    assert ("cpu", 2) not in asked


# What made an operand: bindings, arguments of callers, defaults, and counts


HEAD = "import torch\nfrom torch import nn\n"


def explain(text):
    return record_cell(HEAD + text, "<failed cell>").explanation


@pytest.mark.parametrize(
    ("text", "sentence", "line"),
    [
        (
            (
                "def make(n, frames=0):\n"
                "    return torch.ones(n, frames, 4) if frames else torch.ones(n, 4)\n"
                "video = make(2)\n"
                "video.permute(0, 2, 1)"
            ),
            "video = make(2) (line 5)",
            3,  # the default
        ),
        (
            (
                "def scale(t, mean):\n"
                "    return t.sub_(torch.tensor(mean)[:, None, None])\n"
                "scale(torch.ones(1, 4, 4), (0.5, 0.5, 0.5))"
            ),
            "",
            5,  # the call that passes three numbers
        ),
        (
            (
                "class Net(nn.Module):\n"
                "    def __init__(self, kind):\n"
                "        super().__init__()\n"
                "        self.kind = kind\n"
                "    def forward(self, x):\n"
                "        mask = x.to(self.kind)\n"
                "        return x.masked_fill(mask, 0)\n"
                "net = Net(torch.long)\n"
                "net(torch.ones(2))"
            ),
            "mask = x.to(self.kind) (line 8)",
            10,  # the object whose attribute it is
        ),
    ],
)
def test_an_operand_is_followed_to_the_line_that_made_it(text, sentence, line):
    found = explain(text)
    assert line in found.culprits
    assert not sentence or sentence in found.made
    assert all(one in found.text for one in found.made)


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (
            (
                "words = ['a', 'b', 'c']\ncount = len(words)\n"
                "nn.Linear(count, 2)(torch.ones(4, 5))"
            ),
            "3 = count = len(words) (line 4)",
        ),
        (
            (
                "import numpy as np\nrows = np.ones((4, 5), dtype='float32')\n"
                "x = torch.from_numpy(rows)\nnn.Linear(7, 2)(x)"
            ),
            "5 = dimension 1 of torch.from_numpy(rows) (line 5)",
        ),
        (
            (
                "import numpy as np\nrows = np.ones((4, 5))\n"
                "nn.Linear(rows.shape[1], 2)(torch.ones(2, 6))"
            ),
            "5 = Linear.in_features = rows.shape[1] (line 5)",
        ),
    ],
)
def test_a_number_that_python_counts_has_the_expression_as_origin(text, chain):
    assert chain in explain(text).text
