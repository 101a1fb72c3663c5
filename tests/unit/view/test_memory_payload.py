"""What the Memory view is sent, worked out again and laid beside ``trace.memory``."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.view.payload import pack
from tests.run_node import run_node

FIRST = """
import sys, torch
from meta_magic import record
from meta_magic.view.payload import pack
with record() as trace:
    y = torch.nn.Linear(8, 8)(torch.zeros(3, 8)).sum()
pack(trace)
print("sympy" in sys.modules)
"""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return x + self.norm(self.linear(x)).relu_()


def train():
    model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return model, loss


def move():
    model = nn.Linear(64, 64).to("cuda")
    x = torch.ones(16, 64)
    for _ in range(3):
        x = model(x.cuda()).cpu()
    return model, x


def resize():
    grown = torch.empty(0)
    for n in (10, 1000, 3):
        grown.resize_(n)
        torch.ones(n)
    grown.untyped_storage().resize_(16)
    return grown + 1 if grown.numel() == 4 else grown[:1] + 1


def fail():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2))
    return model(torch.ones(5, 2))


def attend():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    older = torch.ones(3, 4, 8, device="meta")
    return layer(older.expand(3, 4, 8)).sum().backward(), layer


def one():
    return torch.ones(3)


def nothing():
    pass


CELLS = (train, move, resize, fail, attend, one, nothing)


def record_cell(make):
    with record() as trace:
        try:
            kept = make()
        except RuntimeError:
            kept = None
    return trace, kept


@pytest.fixture(params=CELLS, ids=lambda cell: cell.__name__)
def trace(request):
    return record_cell(request.param)[0]


@pytest.mark.skipif(
    torch.__version__ >= "2.14", reason="torch imports sympy for flex attention then"
)
def test_a_first_cell_waits_for_no_library():
    # torch's own kernel of addmm imports sympy, which takes longer than a recording.
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def sum_by(live, find_key):
    """Return bytes by key, in order of key."""
    sums = {}
    for storage in live.storages:
        key = find_key(storage)
        sums[key] = sums.get(key, 0) + storage.nbytes
    return sums


def test_the_browser_knows_the_same_after_each_operator(trace):
    found, memory = run_node("memory_dump.mjs", given=pack(trace)), trace.memory
    assert found["totals"] == [*memory.live_nbytes]
    assert found["peak"] == (-1 if memory.peak_index is None else memory.peak_index)
    assert found["by_category"] == {
        name: [*live] for name, live in memory.live_by_category.items()
    }
    by_place = {name: [*live] for name, live in memory.live_by_place.items()}
    assert {name: found["by_place"][name] for name in by_place} == by_place
    modules = [
        (root, node.fqn)
        for root, tree in enumerate(trace.modules)
        for node in tree.walk()
    ]
    for index, (by_module, by_line) in enumerate(found["live"]):
        live = memory.at(index)
        assert dict(by_line) == sum_by(live, lambda s: s.line or 0)
        named = {modules[at] if at >= 0 else None: n for at, n in by_module}
        assert named == dict(live.by_module)
