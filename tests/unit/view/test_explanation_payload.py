"""Why a block failed, as the browser is sent it."""

from dataclasses import replace

import pytest
import torch

from meta_magic import record
from meta_magic.explain.lineage.lineage_records import Lineage, LineageStep
from meta_magic.view.source_payload import explanation_payload, lineage_payload
from tests.conformance.explanations import record_cell

CELL = "import torch\nx = torch.ones(4, 3)\ny = x @ torch.ones(5, 2)"


@pytest.fixture
def trace():
    trace = record_cell(CELL, "<failed cell>")
    return replace(trace, cell=replace(trace.cell, head="%%meta\n"))


def test_a_block_that_did_not_fail_has_none():
    with record() as trace:
        torch.ones(2)
    assert explanation_payload(trace) is None


def test_operands_have_their_dimensions_marked_that_rules_are_about(trace):
    x, other = explanation_payload(trace)["given"]
    assert (x["name"], x["shape"], x["dtype"]) == ("x", (4, 3), "float32")
    assert (x["marked"], other["marked"]) == ([1], [0])
    assert other["name"] == "torch.ones(5, 2)"
    made = {call.outputs[0].tensor_id: call.outputs[0].shape for call in trace.ops[:2]}
    assert made == {x["tensor"]: (4, 3), other["tensor"]: (5, 2)}


def test_a_dimension_of_what_is_made_of_an_operand_is_not_its_own(trace):
    found = trace.explanation
    words = "dimension 0 of x.mT must equal dimension 1 of x[0]"
    found = replace(found, rules=(words,), lineages=())
    trace.__dict__["explanation"] = found
    assert [one["marked"] for one in explanation_payload(trace)["given"]] == [[], []]


def test_a_repair_is_a_whole_cell_with_its_magic(trace):
    sent, repair = (
        explanation_payload(trace)["repairs"][0],
        trace.explanation.repairs[0],
    )
    assert sent["source"] == f"%%meta\n{repair.source}"
    assert sent["diff"].splitlines()[-2:] == [f"-{repair.before}", f"+{repair.after}"]
    assert sent["consequence"] == repair.consequence


def test_without_repairs_it_is_said_why(trace):
    found = trace.explanation
    assert explanation_payload(trace)["unrepaired"] == ""
    for changes, words in [
        ({"n_tried": 7}, "none of 7 edits that were tried ran"),
        (
            {"n_tried": 7, "declined": "it prints"},
            "none of 7 edits that were tried ran: it prints",
        ),
        ({"n_tried": 0, "declined": "it prints"}, "no repairs were tried: it prints"),
    ]:
        trace.__dict__["explanation"] = replace(found, repairs=(), **changes)
        assert explanation_payload(trace)["unrepaired"] == words


def test_no_file_is_sent_for_a_repair_outside_of_a_cell():
    trace = record_cell(CELL, "<failed cell>")
    assert trace.explanation.repairs
    assert {repair["source"] for repair in explanation_payload(trace)["repairs"]} == {
        ""
    }


def test_steps_of_a_lineage_stand_in_the_order_in_which_they_are_shown():
    steps = (
        LineageStep(value=12, text="a * b", line=4, parts=(1, 2)),
        LineageStep(value=4, text="a, written", line=2, column=4, end_column=5),
        LineageStep(value=3, text="a - 1", line=3, parts=(1,)),
    )
    chain = Lineage(name="dimension 0 of x (12)", steps=steps, caveat="no")
    sent = lineage_payload(chain)
    assert (sent["name"], sent["caveat"]) == ("dimension 0 of x", "no")
    assert [tuple(step.values()) for step in sent["steps"]] == [
        (0, 12, "a * b", 4),
        (1, 4, "a, written", 2),
        (1, 3, "a - 1", 3),
        (2, 4, "a, written", 2),
    ]
