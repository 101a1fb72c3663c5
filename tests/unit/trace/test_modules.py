"""What a module tree says of its containers."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.trace.summary import format_headline
from meta_magic.view.payload import build_payload, pack
from tests.run_node import run_node


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)


class Tower(nn.Sequential):
    pass


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)


def kind_of(module):
    with record() as trace:
        root = module()
    assert root is not None
    return trace.modules[0].kind


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (lambda: nn.ModuleList(Block() for _ in range(64)), "64 x Block"),
        (lambda: nn.ModuleDict({"q": Block(), "k": Block()}), "2 x Block"),
        (
            lambda: nn.Sequential(Block(), Block(), nn.LayerNorm(2)),
            "2 x Block, LayerNorm",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), "2 x Linear"),
        (lambda: nn.ParameterList([torch.ones(2)] * 3), "3 x Parameter"),
        (nn.ParameterList, "ParameterList"),
    ],
)
def test_a_container_says_what_it_holds(module, kind):
    assert kind_of(module) == kind


def test_a_container_of_many_kinds_names_the_first_and_counts_the_others():
    layers = [layer for _ in range(20) for layer in (nn.Linear, nn.Identity)]
    kind = kind_of(lambda: nn.Sequential(*(layer(2, 2) for layer in layers)))
    assert kind == "Linear, Identity, Linear, … 37 more"


def test_a_container_with_a_class_of_its_own_keeps_it():
    assert kind_of(lambda: Tower(Block(), Block())) == "Tower of 2 x Block"


@pytest.mark.parametrize("module", [Pair, nn.ReLU, nn.Sequential])
def test_all_else_is_named_by_its_class(module):
    with record() as trace:
        root = module()
        root.register_buffer("kept", torch.ones(2))
    assert trace.modules[0].kind == module.__name__


def test_the_text_names_the_layers_of_a_list():
    with record() as trace:
        model = Block()
        model.layers = nn.ModuleList(Block() for _ in range(3))
    assert model is not None
    assert "layers: 3 x Block" in str(trace)
    assert "ModuleList" not in str(trace)


def test_a_part_of_two_models_is_counted_once():
    with record() as trace:
        shared, first, second = (nn.Linear(10, n) for n in (10, 5, 5))
        second.weight = first.weight
        models = [nn.Sequential(shared, nn.Linear(10, n)) for n in (2, 3)]
    roots = first, second, *models
    distinct = {id(p): p.numel() for root in roots for p in root.parameters()}
    n_elements = sum(distinct.values())
    assert len(trace.modules) == len(roots)
    parts = format_headline(trace).split(" · ")
    assert parts[0] == f"{n_elements} parameters, {4 * n_elements} bytes"


# Where the code wants its tensors, as the trace tells it


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


def test_the_report_reads_the_places(placed, tmp_path):
    (tmp_path / "trace.gz").write_bytes(pack(placed))
    read = run_node("dump.mjs", tmp_path / "trace.gz")
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
