"""What a cell compiles, exports, traces or scripts."""

import subprocess
import sys
from pathlib import Path

import pytest

import meta_magic

FIRST = """
import sys, torch
from meta_magic import materialize, record

assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
with record() as trace:
    x = torch.ones(3)
    torch.compile(torch.sin, fullgraph=True)(x)
    torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))
    inside = torch.compile(torch.nn.Linear(4, 2), backend="eager")
    y = inside(torch.randn(3, 4))
assert tuple(y.shape) == (3, 2) and y.is_meta
names = {call.op for call in trace.ops}
assert {f"aten.{op}.default" for op in ("sin", "cos", "addmm")} <= names, names
assert sys.meta_path == finders
compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [2, 2]
stats = torch._dynamo.utils.counters["stats"]
assert stats["unique_graphs"] == 1, stats
torch._dynamo.utils.counters.clear()
torch.compile(inside, backend="eager")(torch.empty(3, 4, device="meta"))
assert torch._dynamo.utils.counters["frames"]["ok"] == 1
"""


ARITHMETIC = """
import sys, torch
from meta_magic import record

def list_left():
    return [f for _, f in list_disabled() if "__dynamo_disable" in vars(f)]

with record() as trace:
    x = (torch.ones(3, 4) * 2 + 1).softmax(-1)
    with record():
        x.sigmoid()
    y = x.div(2).pow(3)
assert [call.op for call in trace.ops][-1] == "aten.pow.Tensor_Scalar"
assert "torch._dynamo" not in sys.modules
from meta_magic.torch_private.dynamo import list_disabled
assert len(list_disabled()) > 100
assert not list_left()
with record():
    torch.ones(3) * 2
    assert len(list_left()) > 100
    import torch._dynamo
    assert not list_left()
    torch.ones(3) * 3
torch._refs.add(torch.ones(2), 1)
assert any(vars(f)["__dynamo_disable"] is not f for f in list_left())
compiled = torch.compile(lambda x: x * 2 + 1, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [3, 3]
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""


@pytest.mark.parametrize("program", [FIRST, ARITHMETIC], ids=["compiles", "computes"])
def test_the_first_cell_runs_eagerly_and_later_code_compiles(program):
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(meta_magic.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
