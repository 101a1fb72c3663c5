"""The place in the source that an operator comes from."""

from pathlib import Path

import torch
from torch import nn

from meta_magic import record


def test_a_backward_operator_has_the_line_and_module_of_its_forward_one():
    with record() as trace:
        layer = nn.Linear(3, 4)
        loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
    (forward,) = (c for c in trace.ops if c.op == "aten.addmm.default")
    products = [c for c in trace.ops if c.op == "aten.mm.default"]
    assert products
    for call in products:
        assert (call.line, call.module, call.phase) == (forward.line, "", "backward")


def test_the_position_has_columns_of_the_expression():
    with record() as trace:
        x = torch.ones(3)
        y = (x + 1) * 2
    call = trace.ops[1]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = source[call.position.line - 1]
    assert line[call.position.column : call.position.end_column] == "x + 1"
    assert y.is_meta


def test_the_line_is_that_of_the_file_that_records():
    with record() as trace:
        torch.ones(3)
        torch.ones(3)
    first, second = trace.ops
    assert second.line == first.line + 1
