"""The payload as the report's JavaScript reads it, beside the records themselves."""

import contextlib
import gzip
import json
import re

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.trace.units import format_shape
from meta_magic.view.payload import build_payload, pack
from tests.run_node import run_node


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool), persistent=False)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu_()


def train():
    model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(4, 2))
    model[3].weight = nn.Parameter(model[3].weight.bfloat16().float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(12.0).view(3, 4).t().contiguous().t()
    loss = model(x)[1:].square().mean()
    loss.backward()
    optimizer.step()
    return torch.stack([loss.detach(), loss.detach()]), model


def shared():
    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.ReLU(), linear)
    model(torch.ones(2, 4))
    model(torch.ones(2, 4))
    torch.view_as_complex(torch.ones(3, 2)).conj().imag.add_(1)
    return model


def nothing():
    pass


def fail():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2))
    model(torch.ones(5, 2))


CELLS = {"training": train, "shared": shared, "nothing": nothing, "failing": fail}


@pytest.fixture(scope="module", params=CELLS)
def both(request, tmp_path_factory):
    """A trace, and what JavaScript reads of it."""
    kept = None
    with contextlib.suppress(RuntimeError), record() as trace:
        kept = CELLS[request.param]()
    path = tmp_path_factory.mktemp("payload") / "trace.gz"
    path.write_bytes(pack(trace))
    del kept
    return trace, run_node("dump.mjs", path)


def as_read(tensor):
    """Return a tensor's record as JavaScript should read it."""
    return {
        "id": tensor.tensor_id,
        "storage": tensor.storage_id,
        "geometry": {
            "shape": list(tensor.shape),
            "stride": None if tensor.stride is None else list(tensor.stride),
            "offset": tensor.storage_offset,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "layout": "strided",
            "nbytes": tensor.nbytes,
        },
    }


def test_operators_have_their_tensors(both):
    trace, read = both
    assert len(read["ops"]) == len(trace.ops)
    for call, op in zip(trace.ops, read["ops"], strict=True):
        assert op["op"] == call.op
        assert op["inputs"] == [as_read(t) for t in call.inputs]
        assert op["outputs"] == [as_read(t) for t in call.outputs]
        assert op["writes"] == list(call.writes)
        assert op["views"] == [-1 if view is None else view for view in call.views]
        assert op["flops"] == (-1 if call.flops is None else call.flops)


def test_operators_have_their_places(both):
    trace, read = both
    for call, op in zip(trace.ops, read["ops"], strict=True):
        position = call.position
        assert (op["line"] or None, op["phase"]) == (call.line, call.phase)
        assert (op["function"] or None) == call.function
        assert (op["file"] or None) == (position and position.file)
        assert (op["start"] or None) == (position and position.line)
        assert op["column"] == (
            -1 if position is None or position.column is None else position.column
        )
        assert (op["module"], op["root"]) == (call.module, call.root)
        assert op["call"] == (-1 if call.module_call is None else call.module_call)
        assert op["forward"] == (-1 if call.forward is None else call.forward)


def test_module_calls_have_their_operators_and_tensors(both):
    trace, read = both
    assert len(read["calls"]) == len(trace.module_calls)
    for call, row in zip(trace.module_calls, read["calls"], strict=True):
        assert (row["first_op"], row["end_op"]) == (call.first_op, call.end_op)
        assert row["parent"] == (-1 if call.parent is None else call.parent)
        position, read_position = call.position, row["position"]
        assert (position is None) == (read_position is None)
        if position is not None:
            assert read_position["file"] == position.file
            assert read_position["scope"] == position.function
            assert read_position["start"] == position.line
            assert read_position["column"] == position.column
        for side in ("inputs", "outputs"):
            assert [
                (passed["path"], passed["geometry"]["shape"]) for passed in row[side]
            ] == [(path, list(tensor.shape)) for path, tensor in getattr(call, side)]


def test_modules_have_their_totals(both):
    trace, read = both
    nodes = [node for root in trace.modules for node in root.walk()]
    assert len(read["modules"]) == len(nodes)
    for node, row in zip(nodes, read["modules"], strict=True):
        assert (row["name"], row["class_name"]) == (node.name, node.class_name)
        assert row["fqn"] == node.fqn
        assert row["n_params"] == node.n_parameters
        assert row["nbytes"] == node.parameter_nbytes + node.buffer_nbytes
        assert (row["n_calls"], row["first_call"]) == (
            node.n_calls,
            -1 if node.first_call is None else node.first_call,
        )
        assert [t["name"] for t in row["tensors"]] == [t.name for t in node.tensors]
        assert [t["tied_to"] or None for t in row["tensors"]] == [
            tensor.tied_to for tensor in node.tensors
        ]


def test_alike_siblings_are_one_run(both):
    trace, read = both
    if [root.class_name for root in trace.modules] == ["Sequential"] and (
        len(read["modules"]) > 10
    ):
        assert read["modules"][0]["runs"] == [3, 1]


def test_any_text_survives():
    name = 'a "<script>" \ud800 é 🤖 אב'
    with record() as trace:
        model = nn.ModuleDict({name: nn.ReLU()})
    text = gzip.decompress(pack(trace)).decode("utf-8", "surrogatepass")
    assert json.loads(text)["modules"][1]["name"] == name
    assert len(model) == 1


def test_a_very_long_argument_is_cut():
    with record() as trace:
        torch.ones(2).repeat(*([1] * 500))
    arguments = build_payload(trace)["signatures"]["args"]
    assert max(map(len, arguments)) == 300


def call_jagged():
    rows = [torch.ones(2, 3), torch.ones(4, 3)]
    return nn.Linear(3, 2)(torch.nested.nested_tensor(rows, layout=torch.jagged))


def call_sparse():
    indices, values = torch.tensor([[0, 1], [2, 0]]), torch.ones(2, requires_grad=True)
    return torch.sparse_coo_tensor(indices, values, (3, 3)).to_dense()


@pytest.mark.parametrize("block", [call_jagged, call_sparse])
def test_a_block_with_tensors_of_other_layouts_has_a_report(block):
    with record() as trace:
        block()
    assert json.loads(gzip.decompress(pack(trace)))["geometries"]
    for call in trace.module_calls:
        taken, made = format_flow(call)
        assert re.fullmatch(r"\(2, j\d+, 3\)", taken)
        assert made == taken.replace("3)", "2)")


def format_flow(call):
    return tuple(format_shape(t.shape) for ((_, t),) in (call.inputs, call.outputs))
