"""A cell that is recorded as several ranks of its world."""

import pytest
from torch import distributed as dist

from meta_magic import WorldError

EARLIER = """
import torch
from torch import nn, distributed as dist
class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)
    def forward(self, x):
        return self.layer(x)
width = 4
"""
CELL = """
dist.init_process_group("gloo")
rank = dist.get_rank()
model = Stage(width * (1 + rank))
size = torch.tensor([3 + rank])
if rank > 0:
    dist.recv(size, rank - 1)
if rank < 3:
    dist.send(size, rank + 1)
x = torch.ones(size.item() if rank else 3, width * (1 + rank))
y = model(x)
"""


def test_a_cell_is_recorded_as_several_ranks(shell, capsys):
    shell.run_cell(EARLIER, store_history=True)
    shell.run_cell(f"%%meta -q --world 4 --ranks 0,3\n{CELL}", store_history=True)
    trace = shell.user_ns["_meta"]
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
    ]
    ranks = trace.record_ranks("0,3")
    assert ranks[0].memory.live_nbytes == trace.memory.live_nbytes
    assert [one.line for one in ranks[0].sent] == [one.line for one in trace.sent]
    assert [one.line for one in ranks[3].sent] == [8]
    assert ranks[3].ops[-1].inputs[0].shape == (3, 16)
    # The weight, the input, the output, and the size that it sends or gets.
    assert ranks[3].memory.live_nbytes[-1] == 4 * (16 * 16 + 2 * 3 * 16) + 8


def test_what_cannot_be_recorded_as_other_ranks_is_refused(shell, capsys):
    for line, said in (
        ("--world 4 --ranks 9", "rank 9 is not in a world of 4"),
        ("--ranks all", "--ranks needs --world"),
    ):
        shell.run_cell(f"%%meta -q {line}\nx = torch.ones(2)")
        assert said in capsys.readouterr().err
        assert "x" not in shell.user_ns  # nothing was recorded
    shell.run_cell("%%meta -q\nx = torch.ones(2)")
    with pytest.raises(WorldError, match="only a cell with %%meta --world"):
        shell.user_ns["_meta"].record_ranks()
    shell.user_ns["data"] = Data()
    shell.run_cell("%%meta -q --world 4\nx = data")
    with pytest.raises(WorldError, match="it is not known which cell makes data"):
        shell.user_ns["_meta"].record_ranks()
    shell.run_cell("import torch", store_history=True)
    shell.run_cell("%%meta -q --world 4\nx = torch.ones(2), data", store_history=True)
    with pytest.raises(WorldError, match="used as it is, not made again: data"):
        shell.user_ns["_meta"].record_ranks()


def test_a_world_beside_a_real_process_group_is_refused(shell, capsys):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        shell.run_cell("%%meta --world 4\nx = torch.ones(2)")
    finally:
        dist.destroy_process_group()
    said = capsys.readouterr().err
    assert said.startswith("UsageError: %%meta --world: this process is in a process")


class Data:
    """What only this process has."""
