"""``%%meta`` leaves the classes of layers as they were, however a cell ends."""

import pytest
from torch import nn

from meta_magic.recording.intercept.layers import LAYERS
from meta_magic.recording.intercept.leaf_modules import leaves_by_thread

CALLS = """%%meta
block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
with torch.no_grad():
    for _ in range(3):
        block(torch.ones(2, 4))
"""


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "1 / 0",
        "raise KeyboardInterrupt",
        "block(torch.ones(2, 5))",
        "torch.device('cpu').__enter__()",
        "await __import__('asyncio').sleep(0); block(torch.ones(2, 4))",
    ],
)
def test_a_cell_leaves_the_classes_of_layers_as_they_were(shell, end):
    shell.run_cell(CALLS + end)
    assert not any("__call__" in vars(layer.kind) for layer in LAYERS)
    assert not leaves_by_thread
    assert nn.ReLU.__call__ is nn.Module.__call__


def test_the_traceback_of_a_layer_names_no_file_of_ours(shell, capsys):
    shell.run_cell(CALLS + "block(torch.ones(2, 5))")
    assert "leaf_modules" not in capsys.readouterr().out
