"""When a failed cell shows its explanation, and what a plain cell's recording knows."""

import time

import pytest

from meta_magic.explain import across_cells
from meta_magic.magic import reports, tracebacks

NET = (
    "import meta_magic as mm, torch\nfrom torch import nn\n"
    "class Net(nn.Module):\n"
    "    def __init__(self, width):\n"
    "        super(Net, self).__init__()\n"
    "        self.fc = nn.Linear(width, 2)\n"
    "    def forward(self, x):\n"
    "        return self.fc(x)"
)
RULE = "must equal dimension 1"


@pytest.fixture
def is_shown(shell, monkeypatch):
    """Run a cell; give whether its cause is shown at the traceback, and at the end."""
    found = []

    def look():
        return any(RULE in str(one) for one in shell.display_pub.outputs)

    render = tracebacks.Rendering.__call__

    def note(rendering):
        found.append(look())
        return render(rendering)

    monkeypatch.setattr(tracebacks.Rendering, "__call__", note)

    def run():
        shell.run_cell("%%meta\nnn.Linear(3, 2)(torch.ones(4, 5))", store_history=True)
        return [found[0], look()]

    return run


def test_an_explanation_is_shown_above_the_traceback(is_shown, monkeypatch):
    monkeypatch.setattr(reports, "WAIT", 60)
    assert is_shown() == [True, True]


def test_a_traceback_does_not_wait_for_an_explanation_that_takes_long(
    is_shown, monkeypatch
):
    explain = across_cells.explain

    def wait(trace):
        time.sleep(4)
        return explain(trace)

    monkeypatch.setattr(across_cells, "explain", wait)
    assert is_shown() == [False, True]


def test_a_recording_in_a_plain_cell_rests_on_earlier_cells(shell):
    shell.run_cell(NET, store_history=True)
    shell.run_cell("net = Net(5)", store_history=True)
    text = "x = torch.ones(4, 3)\nwith mm.record() as trace:\n    net(x)"
    shell.run_cell(text, store_history=True)
    found = shell.user_ns["trace"].explanation
    changed = {(one.cell, one.after.strip()) for one in found.repairs}
    assert any(cell and after == "net = Net(3)" for cell, after in changed)
    assert "not made again" not in found.text
