"""Where the code wants its tensors, as the trace tells it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.view.payload import build_payload, pack

NODE = shutil.which("node")
DUMP = Path(__file__).parents[2] / "js" / "dump.mjs"

needs_node = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


@pytest.fixture(scope="module")
def placed():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        model.to("cuda")
        model[2].to("cuda:1")
        model[0](torch.ones(4, 2).cuda())
    return trace


@pytest.fixture(scope="module")
def unnamed():
    with record() as trace:
        nn.Linear(2, 3)(torch.ones(4, 2))
    return trace


def hidden(trace, table):
    columns = build_payload(trace)["columns"][table]
    return [c["name"] for c in columns if c.get("is_hidden")]


def test_the_place_of_a_call_is_that_of_what_it_makes(placed):
    (multiplied,) = [call for call in placed.ops if call.op == "aten.addmm.default"]
    assert multiplied.place == "cuda:0"
    assert placed.ops[0].place is None


def test_a_module_tensor_tells_its_place(placed):
    (root,) = placed.modules
    places = [node.tensors[0].place for node in root.children]
    assert places == [torch.device("cuda:0")] * 2 + [torch.device("cuda:1")]


def test_the_text_says_places_where_they_change(placed):
    lines = [line.split() for line in placed.summary().splitlines()[1:]]
    assert [line[-3:] for line in lines[:1]] == [["on", "cuda:0,", "cuda:1"]]
    assert [line[-2:] for line in lines[1:]] == [
        ["on", "cuda:0"],
        ["on", "cuda:0"],
        ["on", "cuda:1"],
    ]


def test_where_no_device_is_named_all_is_where_its_kernels_are(unnamed):
    assert unnamed.peak_by_place == {}
    # Weight and bias have 9 elements, the input 8, the output 12, of 4 bytes each.
    assert "· peak 116 bytes on cpu ·" in unnamed.summary()


@pytest.mark.parametrize("table", ["ops", "modules"])
def test_the_column_is_hidden_where_no_device_is_named(placed, unnamed, table):
    others = {"raised"} if table == "ops" else set()
    assert {*hidden(unnamed, table)} == {*others, "place"}
    assert {*hidden(placed, table)} == others


@needs_node
def test_the_report_reads_the_places(placed, tmp_path):
    (tmp_path / "trace.gz").write_bytes(pack(placed))
    done = subprocess.run(
        [NODE, DUMP, tmp_path / "trace.gz"], capture_output=True, text=True, check=True
    )
    read = json.loads(done.stdout)
    assert [row["place"] for row in read["module_rows"]] == [
        "cuda:0, cuda:1",
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]
    assert read["modules"][3]["tensors"][0]["place"] == "cuda:1"
    (row,) = [row for row in read["rows"] if row["op"] == "aten.addmm.default"]
    assert row["place"] == "cuda:0"
    (made,) = [op for op in read["ops"] if op["op"] == "aten.addmm.default"]
    assert made["outputs"][0]["geometry"]["place"] == "cuda:0"
