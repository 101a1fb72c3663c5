"""One column, one place: what is described once is in every table."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.trace import module_columns, op_columns
from meta_magic.trace.calls import OpCall
from meta_magic.trace.module_columns import MODULE_COLUMNS, ModuleColumn
from meta_magic.trace.op_columns import OP_COLUMNS, OpColumn
from meta_magic.trace.summary import FORMATS
from meta_magic.trace.trace import Trace
from meta_magic.view.payload import build_payload, pack
from tests.run_node import run_node

SPARE = OpColumn(
    name="spare",
    type="float",
    unit="FLOPs per byte",
    help="FLOPs for each byte that it moves.",
    read=lambda call: (call.flops or 0) / (call.nbytes_read + call.nbytes_written or 1),
    wire="call",
)
BY_SIGNATURE = replace(SPARE, name="sent once", wire="signature")
CALLS = ModuleColumn(
    name="calls",
    help="How often it was called.",
    format="count",
    read=lambda node: node.n_calls,
    add_up="sum",
)


@pytest.fixture
def trace():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 3), *(nn.Linear(3, 3) for _ in range(2)))
        model(torch.ones(4, 2)).sum()
    return trace


@pytest.fixture
def more_columns(monkeypatch):
    more = (*OP_COLUMNS[:2], SPARE, BY_SIGNATURE, *OP_COLUMNS[2:])
    monkeypatch.setattr(op_columns, "OP_COLUMNS", more)
    monkeypatch.setattr(module_columns, "MODULE_COLUMNS", (*MODULE_COLUMNS, CALLS))


def read_in_node(trace, tmp_path):
    (tmp_path / "trace.gz").write_bytes(pack(trace))
    return run_node("dump.mjs", tmp_path / "trace.gz")


def find_column(trace, table, name):
    (column,) = [c for c in build_payload(trace)["columns"][table] if c["name"] == name]
    return column


def test_every_field_of_a_call_is_a_column():
    names = [column.name for column in OP_COLUMNS]
    assert {field.name for field in fields(OpCall)} <= set(names)
    assert len(names) == len(set(names))


def test_a_number_has_three_digits_that_tell():
    numbers = (7.9379, 12345.6, 0.00123456, 3, -0.5)
    expected = ["7.94", "12,300", "0.00123", "3", "-0.5"]
    assert [*map(FORMATS["number"], numbers)] == expected


def test_the_docstring_lists_the_columns_with_their_units():
    lines = Trace.to_pandas.__doc__.splitlines()
    assert lines[0].startswith("Return one row per operator call")
    columns = lines[lines.index("Columns:") :]
    listed = [line.split()[0] for line in columns if line.startswith("    ")]
    assert sorted(listed) == sorted(c.name for c in OP_COLUMNS if c.is_in_table)
    told = (
        "    nbytes_read (int, bytes): Bytes read, each element once; none for a view."
    )
    assert told in lines


def test_the_report_has_the_values_of_the_table(trace, tmp_path):
    table = trace.to_pandas().astype(object)
    rows = read_in_node(trace, tmp_path)["rows"]
    in_table = [c for c in OP_COLUMNS if c.is_in_table]
    plain = [c.name for c in in_table if c.type.split()[0] in ("int", "str")]
    assert len(rows) == len(table) > 10
    assert set(rows[0]) == {c.name for c in OP_COLUMNS}
    for name in plain:
        shown = table[name].where(table[name].notna(), "")
        assert [row[name] for row in rows] == list(shown), name


def test_a_new_column_is_in_pandas(trace, more_columns):
    table = trace.to_pandas()
    (linear,) = [call for call in trace.ops if call.flops == 2 * 4 * 2 * 3]
    # Reads a bias of 3, (4, 2) and (2, 3); writes (4, 3); 4 bytes each.
    moved = 4 * (3 + 8 + 6 + 12)
    assert table["spare"][linear.index] == 48 / moved
    assert list(table)[-1] != "op"


def test_a_value_that_follows_from_the_signature_is_sent_once(trace, more_columns):
    values = find_column(trace, "ops", "sent once")["values"]
    numbers = [*trace.program.signature_numbers()]
    assert len(values) < len(numbers)
    expected = trace.to_pandas()["spare"]
    assert [values[number] for number in numbers] == list(expected)


def test_a_new_column_is_in_the_report(trace, more_columns, tmp_path):
    read = read_in_node(trace, tmp_path)
    expected = list(trace.to_pandas()["spare"])
    assert [row["spare"] for row in read["rows"]] == expected
    assert [row["sent once"] for row in read["rows"]] == expected
    assert [row["calls"] for row in read["module_rows"]] == [1, 1, 1, 1]


def test_the_report_alone_has_times_and_what_is_alive(trace, tmp_path):
    rows = read_in_node(trace, tmp_path)["rows"]
    assert {"time", "alive"}.isdisjoint(trace.to_pandas())
    assert [row["alive"] for row in rows] == [*trace.memory.live_nbytes]
    table = trace.cost.roofline().to_pandas()
    seconds = table["seconds"].where(table["phase"] != "init", 0)
    shares = seconds / seconds.sum()
    assert [row["time"] or 0 for row in rows] == pytest.approx([*shares])
