"""Why a backward pass cannot go back: what wrote, what freed, what cut, and repairs."""

import subprocess
import sys

import pytest

from tests.conformance.recorded_cells import record_cell, split_programs

HEAD = "import torch\nfrom torch import nn\n"
LEAF = f"{HEAD}w = torch.ones(3, requires_grad=True)\n"
PROGRAMS = split_programs(
    LEAF,
    """
# %% z.mul_(2) (line 7) writes into a tensor that y.exp() | z = z.mul(2)
y = w + 1
y.mul_(2)  # nothing saved it
z = y.exp()
z.mul_(2)
z.sum().backward()

# %% in `2`) writes into a tensor that | nn.ReLU(inplace=False)
m = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True))
m(torch.ones(2, 3)).sum().backward()

# %% earlier backward pass freed the tensors that w * w | y.backward(retain_graph=True)
y = (w * w).sum()
y.backward()
y.backward()

# %% o.step() (line 8
a, b = nn.Linear(2, 2), nn.Linear(2, 1)
o = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
h = b(a(torch.ones(1, 2)))
other = (h * h).sum()
h.sum().backward(retain_graph=True); o.step()
other.backward()

# %%  | h[t + 1] = h[t].clone() * w
h = torch.zeros(4, 3)
for t in range(3):
    h[t + 1] = h[t] * w
h.sum().backward()

# %%  | h = (w * h.detach()).exp()
h = torch.ones(3)
for _ in range(2):
    h = (w * h).exp()
    h.sum().backward()

# %%  | with torch.enable_grad(): y = w * 2
with torch.no_grad(): y = w * 2
y.sum().backward()

# %%  | loss.backward()
total = 0
for _ in range(2):
    loss = (w * w).sum()
    total += loss
    total.backward()

# %%  | for p in [*m.parameters()][:-2]:
m = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
for p in m.parameters():
    p.requires_grad = False
m(torch.ones(3, 2)).sum().backward()

# %%  | p.requires_grad = True
m = torch.nn.Linear(2, 1)
for p in m.parameters():
    p.requires_grad = False
m(torch.ones(3, 2)).sum().backward()
""",
)
"""After a part of the rule, and a repair."""


def explain(text):
    return record_cell(text, "<failed cell>").explanation


def run(text):
    """Run a program on the CPU, which must not raise."""
    exec(text, {"__name__": "__main__"})


@pytest.mark.parametrize("title", PROGRAMS)
def test_what_wrote_freed_or_cut_is_named_and_repaired(title):
    rule, _, repaired = title.partition(" | ")
    found = explain(PROGRAMS[title])
    assert rule in found.rules[0]
    assert not repaired or any(repaired in one.after for one in found.repairs)
    for repair in found.repairs:
        run(repair.source)


@pytest.mark.parametrize(
    ("write", "repaired"),
    [
        ("y.add_(1)", "y = y.add(1)"),
        ("y *= w + 1", "y = y * (w + 1)"),
        ("y[0] = 0", "y = y.clone(); y[0] = 0"),
    ],
)
def test_the_line_that_wrote_and_the_line_that_saved_are_named(write, repaired):
    found = explain(f"{LEAF}y = w.exp()\n{write}\ny.sum().backward()")
    assert "(line 5) writes into a tensor that w.exp() (line 4) saved" in found.rules[0]
    assert found.repairs[0].after == repaired
    run(found.repairs[0].source)


@pytest.mark.parametrize(
    ("made", "repaired"),
    [
        ("y = (w * 2).detach()", "y = w * 2"),
        ("y = (w * 2).data", "y = w * 2"),
        ("y = ((w * 2) > 2).float()", "y = w * 2"),
    ],
)
def test_the_line_that_cut_the_graph_is_named(made, repaired):
    found = explain(f"{LEAF}{made}\nz = y.sum()\nz.backward()")
    assert "(line 4) cuts the graph" in found.rules[0]
    assert repaired in [repair.after for repair in found.repairs]
    for repair in found.repairs:
        run(repair.source)


def test_a_graph_that_never_was_is_said_to_be_none():
    found = explain("import torch\nz = torch.ones(3).sum()\nz.backward()")
    assert found.rules[0].startswith("z depends on no tensor that requires a gradient")
    assert found.repairs == ()


def test_a_graph_that_saved_numbers_alone_is_freed_too():
    found = explain(
        "import torch\nx = torch.ones(3, requires_grad=True)\ny = x / 3\n"
        "y.sum().backward()\ny.sum().backward()"
    )
    assert found.rules == (
        "an earlier backward pass freed the tensors that x / 3 (line 3) saved",
    )


def test_dynamo_is_not_imported_to_ask_what_was_saved():
    text = f"{LEAF}y = w / 3\ny.sum().backward()\ny.sum().backward()"
    program = (
        "import sys\nfrom tests.conformance.explanations import record_cell\n"
        f"assert record_cell({text!r}, '<failed cell>').explanation.rules\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


LOOP = """
import torch
from torch import nn
rnn, head = nn.{kind}(8, 16, batch_first=True), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], 0.1)
state = None
for _ in range(3):
    out, state = rnn(torch.rand(4, 5, 8), state)
    loss = head(out[:, -1]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        ("LSTM", "state and tuple(one.detach() for one in state)"),
        ("GRU", "None if state is None else state.detach()"),
    ],
)
def test_a_state_that_is_none_at_first_is_detached(kind, argument):
    found = explain(LOOP.format(kind=kind))
    assert "that rnn(torch.rand(4, 5, 8), state) (line 8) saved" in found.rules[0]
    assert argument in found.repairs[0].after
    run(found.repairs[0].source)


def test_a_discriminator_takes_what_a_generator_made_without_its_graph():
    found = explain(
        "import torch\nfrom torch import nn\ng, d = nn.Linear(4, 8), nn.Linear(8, 1)\n"
        "fake = g(torch.rand(5, 4))\nd(fake).mean().backward()\n"
        "(-d(fake).mean()).backward()"
    )
    assert found.repairs[0].after == "d(fake.detach()).mean().backward()"
    assert found.repairs[0].line == 5
    run(found.repairs[0].source)


def test_a_number_that_was_taken_out_of_its_tensor_is_left_in_it():
    found = explain(f"{LEAF}loss = (w * 2).mean().item()\nloss.backward()")
    assert found.repairs[0].after == "loss = (w * 2).mean()"
    run(found.repairs[0].source)
