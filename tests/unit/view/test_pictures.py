"""Which elements a call reads, worked out by hand; torch's samples are a sweep.

``python -m tests.conformance.pictures`` compares the browser's reading with torch.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from meta_magic import record
from meta_magic.view.payload import build_payload
from meta_magic.view.pictures import find_picture

DUMP = Path(__file__).parents[2] / "js" / "reach_dump.mjs"


def find_last(function):
    """Return the picture of the last operator of a function."""
    with record(as_device="cpu") as trace:
        function()
    signature = trace.program.signatures[trace.columns.signature[-1]]
    return find_picture(signature)


@pytest.mark.parametrize(
    ("function", "kind", "reaches"),
    [
        (lambda: torch.ones(3, 1) + torch.ones(4), "broadcast", [[0, 1], [1]]),
        (lambda: torch.ones(3, 4).T, "memory", ()),
        (lambda: torch.ones(3, 4).sum(0), "reduction", [[-1, 0]]),
        (lambda: torch.ones(3, 4).sum(0, keepdim=True), "reduction", [[-1, 1]]),
        (lambda: torch.ones(3, 4).softmax(0), "line", [[-1, 1]]),
        (lambda: torch.ones(3).cumsum(0), "line", [[["upto", 0]]]),
        (
            lambda: torch.cat([torch.ones(2), torch.ones(3)]),
            "join",
            [[["shift", 0, 0]], [["shift", 0, 2]]],
        ),
        (
            lambda: torch.ones(3, 4)[torch.zeros(2, dtype=torch.long)],
            "pick",
            [[-1, 1], [0]],
        ),
        (
            lambda: functional.max_pool2d(torch.ones(1, 9, 8), (3, 2), (2, 1)),
            "window",
            [[0, ["window", 1, 2, 0, 1, 3], ["window", 2, 1, 0, 1, 2]]],
        ),
    ],
)
def test_a_call_has_the_picture_of_its_family(function, kind, reaches):
    found = find_last(function)
    assert (found.kind, found.reaches) == (kind, reaches)


def test_a_product_has_its_letters():
    found = find_last(lambda: torch.ones(2, 3, 4).bmm(torch.ones(2, 4, 5)))
    assert (found.kind, found.terms) == ("product", "bik,bkj->bij")
    assert found.reaches == [[0, 1, -1], [0, -1, 2]]


def test_what_has_no_rule_has_no_picture():
    assert find_last(lambda: torch.linalg.inv(torch.eye(2))) is None
    assert find_last(lambda: torch.ones(3).exp()) is None
    assert find_last(lambda: torch.ones(3)) is None


def read_all(function):
    """Return what the browser reads for the last call: numbers of elements."""
    with record(as_device="cpu") as trace:
        function()
    line = json.dumps(build_payload(trace))
    done = subprocess.run(
        ["node", DUMP], input=line, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)[-1]["read"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
@pytest.mark.parametrize(
    ("function", "read"),
    [
        (
            lambda: torch.arange(6).view(2, 3).T,
            [[[[0]], [[3]], [[1]], [[4]], [[2]], [[5]]]],
        ),
        # Of a window of three, one place lies in the padding at each end.
        (
            lambda: functional.avg_pool2d(torch.ones(1, 1, 4), (1, 3), 1, (0, 1)),
            [[[[0, 1]], [[0, 1, 2]], [[1, 2, 3]], [[2, 3]]]],
        ),
        (
            lambda: torch.stack([torch.ones(2), torch.zeros(2)], 1),
            [[[[0], None], [None, [0]], [[1], None], [None, [1]]]],
        ),
        (
            lambda: torch.ones(1, 2) @ torch.ones(2, 2),
            [[[[0, 1], [0, 2]], [[0, 1], [1, 3]]]],
        ),
    ],
)
def test_the_browser_reads_what_is_worked_out_by_hand(function, read):
    assert read_all(function) == read
