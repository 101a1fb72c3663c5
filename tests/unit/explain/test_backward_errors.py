"""Why a backward pass cannot go back: what wrote, what freed, what cut, and repairs."""

import subprocess
import sys

import pytest

from tests.conformance.explanations import record_cell

LEAF = "import torch\nw = torch.ones(3, requires_grad=True)\n"


def explain(text):
    return record_cell(text, "<failed cell>").explanation


def run(text):
    """Run a program on the CPU, which must not raise."""
    exec(text, {"__name__": "__main__"})


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
    assert "(line 4) writes into a tensor that w.exp() (line 3) saved" in found.rules[0]
    assert found.repairs[0].after == repaired
    run(found.repairs[0].source)


def test_what_a_loop_reads_of_what_it_writes_is_copied():
    found = explain(
        f"{LEAF}h = torch.zeros(4, 3)\nfor t in range(3):\n"
        "    h[t + 1] = h[t] * w\nh.sum().backward()"
    )
    assert "    h[t + 1] = h[t].clone() * w" in [r.after for r in found.repairs]
    for repair in found.repairs:
        run(repair.source)


def test_what_nothing_saved_may_be_written():
    found = explain(
        f"{LEAF}y = w + 1\ny.mul_(2)\nz = y.exp()\nz.mul_(2)\nz.sum().backward()"
    )
    assert found.rules[0].startswith(
        "z.mul_(2) (line 6) writes into a tensor that y.exp()"
    )


def test_a_module_that_writes_gets_an_edit_that_does_not():
    found = explain(
        "import torch\nfrom torch import nn\n"
        "m = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True))\n"
        "m(torch.ones(2, 3)).sum().backward()"
    )
    assert "in `2`) writes into a tensor that" in found.rules[0]
    assert "nn.ReLU(inplace=False)" in found.repairs[0].after
    run(found.repairs[0].source)


def test_a_second_pass_names_what_the_first_freed_and_retains_it():
    found = explain(f"{LEAF}y = (w * w).sum()\ny.backward()\ny.backward()")
    assert found.rules == (
        "an earlier backward pass freed the tensors that w * w (line 3) saved",
    )
    assert found.repairs[0].line == 4
    assert found.repairs[0].after == "y.backward(retain_graph=True)"
    run(found.repairs[0].source)


def test_what_a_loop_carries_over_is_detached():
    found = explain(
        f"{LEAF}h = torch.ones(3)\nfor _ in range(2):\n    h = (w * h).exp()\n"
        "    h.sum().backward()"
    )
    assert "    h = (w * h.detach()).exp()" in [one.after for one in found.repairs]
    run(found.repairs[0].source)


def test_what_a_step_wrote_is_not_taken_for_what_a_pass_freed():
    found = explain(
        "import torch\nfrom torch import nn\na, b = nn.Linear(2, 2), nn.Linear(2, 1)\n"
        "o = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)\n"
        "h = b(a(torch.ones(1, 2)))\nother = (h * h).sum()\n"
        "h.sum().backward(retain_graph=True)\no.step()\nother.backward()"
    )
    assert found.rules[0].startswith("o.step() (line 8")
    assert "saved for backward" in found.rules[0]


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
    assert "(line 3) cuts the graph" in found.rules[0]
    assert repaired in [repair.after for repair in found.repairs]
    for repair in found.repairs:
        run(repair.source)


def test_what_ran_under_no_grad_is_enabled():
    found = explain(f"{LEAF}with torch.no_grad(): y = w * 2\ny.sum().backward()")
    assert found.repairs[0].after == "with torch.enable_grad(): y = w * 2"
    run(found.repairs[0].source)


def test_what_is_added_up_goes_back_by_its_newest_part():
    found = explain(
        f"{LEAF}total = 0\nfor _ in range(2):\n    loss = (w * w).sum()\n"
        "    total += loss\n    total.backward()"
    )
    assert found.repairs[0].after == "    loss.backward()"
    run(found.repairs[0].source)


def test_all_but_the_last_layer_may_be_frozen():
    found = explain(
        "import torch\nfrom torch import nn\n"
        "m = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))\n"
        "for p in m.parameters():\n    p.requires_grad = False\n"
        "m(torch.ones(3, 2)).sum().backward()"
    )
    kept = "for p in [*m.parameters()][:-2]:"
    repair = next(one for one in found.repairs if one.after == kept)
    run(repair.source)


def test_frozen_parameters_are_unfrozen():
    found = explain(
        "import torch\nm = torch.nn.Linear(2, 1)\nfor p in m.parameters():\n"
        "    p.requires_grad = False\nm(torch.ones(3, 2)).sum().backward()"
    )
    assert found.repairs[0].after == "    p.requires_grad = True"
    run(found.repairs[0].source)


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
