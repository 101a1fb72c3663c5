"""The failed call of a trace in one line."""

import pytest
import torch
from torch import nn

from meta_magic import ValueLimits, record
from meta_magic.errors import ValueLimitError
from meta_magic.trace.summary import describe_failure
from meta_magic.view.html import render_html
from meta_magic.view.payload import build_payload


def fail(module, *shape):
    with pytest.raises(RuntimeError), record() as trace:
        module(torch.ones(shape))
    return trace


class Gram(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 6)

    def forward(self, x):
        return self.query(x) @ x


@pytest.mark.parametrize(
    ("module", "shape", "words"),
    [
        (nn.Linear(4, 2), (3, 8), "Linear(4 -> 2) got (3, 8)"),
        (nn.Conv2d(3, 8, 3), (1, 4, 9, 9), "Conv2d(3 -> 8) got (1, 4, 9, 9)"),
        (nn.LayerNorm(4), (3, 5), "LayerNorm(weight (4,), bias (4,)) got (3, 5)"),
    ],
)
def test_a_module_of_torch_is_told_with_its_sizes_and_what_it_got(module, shape, words):
    trace = fail(nn.Sequential(nn.Identity(), module), *shape)
    assert describe_failure(trace) == f"1: {words} at line {trace.error_line}"


def test_a_line_of_a_modules_own_is_told_with_the_operator():
    trace = fail(nn.ModuleDict({"gram": Gram()})["gram"], 3, 8)
    text = f"mm got (3, 6), (3, 8) at line {trace.error_line}"
    assert describe_failure(trace).endswith(text)


def test_a_call_in_no_module_is_told_by_its_operator():
    trace = fail(lambda x: x + torch.ones(5), 3)
    assert describe_failure(trace) == f"add got (3,), (5,) at line {trace.error_line}"


def test_a_value_that_is_not_computed_is_told_by_its_line():
    def read():
        return torch.ones(2).sum().item()

    with pytest.raises(ValueLimitError), record(limits=ValueLimits(nbytes=0)) as trace:
        read()
    line = test_a_value_that_is_not_computed_is_told_by_its_line.__code__
    said = f"line {line.co_firstlineno + 2} needs a value that is not computed"
    assert describe_failure(trace) == said


def test_what_did_not_fail_is_not_told():
    with record() as trace:
        torch.ones(3)
    assert describe_failure(trace) == ""
    with pytest.raises(ZeroDivisionError), record() as trace:
        torch.ones(3)
        1 / 0
    assert describe_failure(trace) == ""


def test_the_text_the_html_and_the_report_say_it():
    trace = fail(nn.Linear(4, 2), 3, 8)
    failure = describe_failure(trace)
    assert str(trace).splitlines()[0] == failure
    assert f"<p>{failure.replace('>', '&gt;')}</p>" in render_html(trace)
    assert build_payload(trace)["failure"] == failure
