"""Where sizes come from: each chain is checked by a run with other numbers."""

import sys

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.explain.edits.program_text import Edit, Stretch, apply_edit
from meta_magic.explain.lineage.lineage_records import Lineage, LineageStep
from tests.conformance.explanations import record_cell

BROADCAST = """
x = torch.zeros(1, 5)
out = x[:, None] @ x[..., None] + x[:, None] + torch.ones(1, 1, 5)
"""

LOOP = """
x = torch.zeros(340, 6)
parts = [x[i + 1 : i + 999].reshape(-1, 2) for i in range(2, 60, 9)]
part = parts[1]
"""

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"

MLP = """
hidden = 24
net = nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, hidden * 2))
out = net(torch.randn(8, 20))
"""

CONVOLUTIONS = """
class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(width, 7, 5, dilation=2)
        self.pool = nn.MaxPool2d(3, 2)
    def forward(self, x):
        x = F.relu(self.conv1(x))
        return self.pool(self.conv2(x)).flatten(1)
out = Net()(torch.randn(4, 1, 53, 47))
"""

ATTENTION = """
class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        size = B, T, self.heads, D // self.heads
        q, k = (t.view(size).transpose(1, 2) for t in (q, k))
        return q, q @ k.transpose(-2, -1)
tokens = torch.zeros(2, 11, dtype=torch.long)
head, out = Block(30, 5)(nn.Embedding(50, 30)(tokens))
"""

U_NET = """
down = nn.Conv2d(3, 4, 3, padding=1)
up = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
skip = down(torch.randn(1, 3, 16, 22))
joined = torch.cat([up(F.max_pool2d(skip, 2)), skip], 1)
out = F.pad(joined, (1, 2))[:, :, 3:, ::2]
"""


def run(text):
    """Return what a program recorded, and its variables."""
    trace = record_cell(HEAD + text, "<sizes>")
    return trace, dict(vars(sys.modules["__cell__"]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MLP, "out"),
        (CONVOLUTIONS, "out"),
        (ATTENTION, "out"),
        (U_NET, "out"),
        (LOOP, "part"),
        (BROADCAST, "out"),
    ],
)
def test_with_a_written_number_changed_a_size_is_what_its_chain_says(text, name):
    trace, variables = run(text)
    n_compared = 0
    for dim in range(variables[name].dim()):
        lineage = trace.why(variables[name], dim)
        assert lineage.size == variables[name].shape[dim]
        for number, step in enumerate(lineage.steps):
            for value in (2 * step.value, step.value + 5) if step.is_written else ():
                here = Stretch(step.line, step.column, step.end_column, str(value))
                edit = Edit(stretches=(here,), cost=0)
                _, changed = run(apply_edit(HEAD + text, edit).removeprefix(HEAD))
                if name in changed:  # else the sizes do not fit each other then
                    n_compared += 1
                    predicted = lineage.predict({number: value})
                    assert predicted == changed[name].shape[dim], str(lineage)
    assert n_compared > 1


def test_the_roots_are_the_numbers_written_with_their_lines_and_names():
    trace, variables = run(CONVOLUTIONS)
    lineage = trace.why(variables["out"], 1)
    roots = {(root.value, root.line, root.text) for root in lineage.roots}
    assert (7, 9, "conv2.out_channels, written") in roots
    assert (53, 14, "in torch.randn(4, 1, 53, 47), written") in roots
    assert not any("width" in text for _, _, text in roots)


def test_a_chain_stands_in_lines_and_says_nothing_twice():
    trace, variables = run(U_NET.replace("22", "16"))
    lines = trace.why(variables["joined"], 1).lines
    assert lines == (
        "10 = 6 + 4 by cat (line 8)",
        "  6 = up.out_channels, written (line 6)",
        "  4 = down.out_channels, written (line 5)",
    )


def test_arithmetic_of_numbers_without_names_stands_in_one_line():
    text = "fc = nn.Linear((1 + 3) * 7 * 6, 5)\nout = fc.weight"
    trace, variables = run(text)
    first, *rest = trace.why(variables["out"], 1).lines
    assert first == "168 = fc.in_features = (1 + 3) * 7 * 6"
    values = [line.strip().partition(" = ")[0] for line in rest]
    assert values == ["1", "3", "7", "6"]
    assert all(line.endswith("written (line 4)") for line in rest)


@pytest.mark.parametrize(
    ("result", "dim", "line", "root"),
    [
        ("out", 2, "18 = 2 * 9 by lstm (line 5)", 9),
        ("out", 0, "3 = in torch.randn(3, 7, 5), written (line 5)", 3),
        ("h", 1, "3 = in torch.randn(3, 7, 5), written (line 5)", 3),
        ("c", 2, "9 = lstm.hidden_size, written (line 4)", 9),
        ("state", 1, "6 = LSTMCell.hidden_size, written (line 6)", 6),
    ],
)
def test_sizes_of_a_recurrent_layer_come_from_its_states_and_input(
    result, dim, line, root
):
    trace, variables = run(
        "lstm = nn.LSTM(5, 9, batch_first=True, bidirectional=True)\n"
        "out, (h, c) = lstm(torch.randn(3, 7, 5))\n"
        "state, _ = nn.LSTMCell(4, 6)(torch.randn(2, 4))\n"
    )
    lineage = trace.why(variables[result], dim)
    assert lineage.lines[0] == line
    assert {step.value for step in lineage.roots} == {root}


def call(model):
    with record() as trace:
        out = model(torch.ones(3, 6))
    return trace, out


def test_a_size_from_outside_of_the_block_says_what_has_it():
    model = nn.Linear(6, 4)
    trace, out = call(model)
    lines = trace.why(out, -1).lines
    assert lines[0] == "4 = dimension 0 of model.weight, from outside of the block"


def test_a_dimension_that_is_none_and_a_tensor_that_was_not_recorded_are_refused():
    with record() as trace:
        out = torch.ones(3)
    with pytest.raises(IndexError, match="1 dimensions has no dimension 1"):
        trace.why(out, 1)
    with pytest.raises(TrialError, match="does not have this tensor"):
        trace.why(torch.ones(3), 0)


def test_data_decides_and_that_is_said():
    trace, variables = run("out = torch.arange(6)[torch.arange(6) > 2]\n")
    lineage = trace.why(variables["out"], 0)
    assert lineage.size == 3
    assert not lineage.roots or "seen by running" in lineage.caveat


PRODUCTS = """
B, H, T, D = 4, 4, 16, 8
q, k = torch.randn(B, H, T, D), torch.randn(B, H, T, D)
scores = q @ k.transpose(-2, -1)
out = nn.Linear(T, 5)(scores)
"""


def test_equal_sizes_inside_of_a_product_are_kept_apart():
    trace, _ = run(PRODUCTS)
    inside = next(op for op in trace.ops if op.op == "aten.bmm.default").outputs[0]
    names = [
        {root.text.split(",")[0] for root in trace.why(inside, dim).roots}
        for dim in range(3)
    ]
    assert inside.shape == (16, 16, 16)
    assert names == [{"B", "H"}, {"T"}, {"T"}]
    rows = next(op for op in trace.ops if op.op == "aten.addmm.default").outputs[0]
    assert trace.why(rows, 0).lines[0] == "256 = 4 * 4 * 16 by linear (line 8)"


def test_a_power_that_no_size_can_be_is_not_computed():
    lineage = Lineage(
        name="dimension 0 of x",
        steps=(
            LineageStep(value=1024, text="2 ** 10", parts=(1,), formula="power(2, {})"),
            LineageStep(value=10, text="10", line=1, column=0, end_column=2),
        ),
    )
    assert lineage.predict({1: 11}) == 2048
    assert lineage.predict({1: 2**62}) is None
