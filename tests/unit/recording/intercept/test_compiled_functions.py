"""What a cell compiles, exports, traces or scripts."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import meta_magic
from meta_magic import materialize, record

FIRST = """
import sys, torch
from meta_magic import materialize, record

assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
with record() as trace:
    x = torch.ones(3)
    torch.compile(torch.sin, fullgraph=True)(x)
    torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))
names = [call.op for call in trace.ops]
assert "aten.sin.default" in names and "aten.cos.default" in names, names
assert sys.meta_path == finders
compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [2, 2]
stats = torch._dynamo.utils.counters["stats"]
assert stats["unique_graphs"] == 1, stats
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


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit_traces_convolutions_and_their_values_are_those_of_the_cpu():
    def trace_module():
        torch.manual_seed(0)
        module = nn.Sequential(
            *(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)),
            *(nn.Conv2d(3, 3, 3, padding=1), nn.Flatten(), nn.Linear(48, 2)),
        )
        traced = torch.jit.trace(module, torch.ones(1, 3, 4, 4))
        return module, traced(torch.ones(2, 3, 4, 4)), str(traced.inlined_graph)

    _, wanted, graph = trace_module()
    for _ in range(2):  # the second one knows all of the operators
        with record(as_device="cpu"):
            module, met, met_graph = trace_module()
            assert met.tolist() == wanted.tolist()
        assert met_graph.count("aten::_convolution") == 2
        assert "aten::_convolution" in graph
        materialize(module)
        assert torch.equal(module(torch.ones(2, 3, 4, 4)), wanted)
