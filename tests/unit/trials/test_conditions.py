"""For which sizes a block runs, by ``trace.check``."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials import conditions
from meta_magic.trials.conditions import find_conditions
from meta_magic.trials.size_search import Form

LIMIT = 20


def test_a_side_must_be_a_multiple_of_the_strides_together():
    with record() as trace:
        side = 64
        x = torch.randn(1, 3, side, side)
        small = F.max_pool2d(F.max_pool2d(x, 2), 2)
        x + F.interpolate(small, scale_factor=4)
    found = trace.check("side")
    assert found.condition == "side % 4 == 0"
    assert found.sizes["side"][64]
    assert not found.sizes["side"][65]
    assert "must be a multiple of 4; with side=" in found.text
    assert found.why is not None
    assert "must match" in found.why.error
    assert found.line == found.why.line == trace.ops[-1].position.line


def test_a_limit_is_found_that_a_table_sets():
    with record() as trace:
        T = 5
        table = nn.Embedding(LIMIT, 3)
        torch.randn(2, T, 3) + table.weight[:T]
    assert trace.check("T").condition == "T <= 20"


def test_a_dropped_dimension_is_a_failure():
    with record() as trace:
        batch = 4
        y = torch.randn(batch, 3).squeeze()
    found = trace.check("batch")
    assert found.condition == "batch >= 2"
    assert "y has 1 dimension instead of 2" in found.text
    assert found.why is None
    assert y.shape == (4, 3)


def test_named_values_are_recorded_and_any_size_may_run():
    with record() as trace:
        rows = 4
        torch.ones(rows, 2).sum(1)
    found = trace.check(rows=[3, 9])
    assert found.condition == "True"
    assert found.sizes["rows"][3]
    assert found.sizes["rows"][9]
    assert found.line is None


def test_an_argument_of_a_call_can_vary():
    with record() as trace:
        net = SimpleNamespace(width=12, groups=3)
        nn.Conv1d(net.width, 6, 1, groups=net.groups)
    assert trace.check("width").condition == "width % 3 == 0"


def test_the_literal_that_is_there_once_can_vary():
    with record() as trace:
        torch.randn(24, 6).view(-1, 8, 6)
    assert trace.check("B=24").condition == "B % 8 == 0"


def test_what_cannot_be_asked_is_refused_by_name():
    with record() as trace:
        rows = 4
        for turn in range(3):
            torch.ones(rows, turn + 1)
    with pytest.raises(TrialError, match=r"no name 'cols'.*it has rows"):
        trace.check("cols")
    with pytest.raises(TrialError, match="turn is bound by the loop"):
        trace.check("turn")
    with pytest.raises(TrialError, match="positive integers"):
        trace.check(rows=[0])


def test_a_name_with_two_values_asks_which():
    with record() as trace:
        nn.Sequential(
            nn.Linear(in_features=3, out_features=4), nn.Linear(4, out_features=5)
        )
    with pytest.raises(TrialError, match=r"several values: 4 in line .*, 5 in line"):
        trace.check("out_features")


@pytest.mark.parametrize(
    ("form", "written", "words"),
    [
        (Form(step=4), "n % 4 == 0", "n must be a multiple of 4"),
        (
            Form(step=4, rest=1, low=9),
            "n % 4 == 1 and n >= 9",
            "n must leave 1 when it is divided by 4 and be at least 9",
        ),
        (Form(low=28, high=31), "28 <= n <= 31", "n must be from 28 to 31"),
        (Form(multiple=48), "48 % n == 0", "n must divide 48"),
        (
            Form(step=2, small=(1, 3)),
            "n % 2 == 0 or 1 <= n <= 3",
            "n must be a multiple of 2, or be from 1 to 3",
        ),
        (
            Form(low=8, high=8),
            "n == 8",
            "n must be 8: no other size that was tried runs",
        ),
    ],
)
def test_a_form_is_written_and_described(form, written, words):
    assert (form.write("n"), form.describe("n")) == (written, words)


def test_a_side_of_an_earlier_statement_is_varied_with_what_rests_on_it():
    side = 6
    x = torch.ones(side, device="meta")
    with record() as trace:
        x.view(-1, 3)
    assert trace.check("side").condition == "side % 3 == 0"


def list_sizes(trace):
    return [
        (note.line, note.text.partition(":")[0])
        for note in trace.notes
        if note.kind == "size"
    ]


def test_near_sizes_are_tried_where_a_check_is_asked_for(monkeypatch):
    monkeypatch.setattr(conditions, "TRIED_SECONDS", 20)  # on a busy machine
    with record(check=True) as trace:
        side, B, T = 64, 8, 16
        x = torch.randn(B, 4, side, side)
        nn.functional.interpolate(F.max_pool2d(x, 2), scale_factor=2) + x
        table = nn.Embedding(16, 12)
        y = table(torch.zeros(B, T).long()) + table.weight[:T]
        nn.BatchNorm1d(12)(y.mean(1))
    first = trace.ops[0].line
    assert [(line - first, text) for line, text in list_sizes(trace)] == [
        (1, "fails with side=65"),
        (3, "fails with T=17"),
        (4, "fails with B=1"),
    ]
    with record() as trace:
        side = 64
        x = torch.randn(2, 4, side, side)
        nn.functional.interpolate(F.max_pool2d(x, 2), scale_factor=2) + x
    assert not list_sizes(trace)


def test_a_size_that_parameters_have_is_not_tried_unasked():
    with record(check=True) as trace:
        D, H = 12, 3
        nn.Linear(D, D)(torch.ones(2, D)).view(2, H, D // H, 1).expand(2, H, 4, 5)
    assert not [text for _, text in list_sizes(trace) if "D=" in text]


def test_a_last_batch_of_one_is_a_rest_of_a_division():
    with record() as trace:
        N = 12
        layer = nn.BatchNorm1d(3)
        for rows in torch.ones(N, 3).split(4):
            layer(rows)
    found = trace.check("N")
    assert found.condition == "N % 4 != 1"
    assert found.text.startswith("N must not leave 1 when it is divided by 4; with N=")


@pytest.mark.parametrize(
    ("form", "condition", "words"),
    [
        (Form(step=8, rest=5, width=4), "(n - 5) % 8 < 4", "leave 5 to 0 when"),
        (Form(step=28, width=4), "n % 28 < 4", "leave 0 to 3 when"),
        (Form(step=9, rest=2, width=6), "(n - 2) % 9 < 6", "not leave 8 to 1 when"),
        (Form(multiple=36, power=2), "36 % n**2 == 0", "have a square that divides 36"),
    ],
)
def test_rests_and_squares_are_written_as_they_hold(form, condition, words):
    assert form.write("n") == condition
    assert f"n must {words}" in form.describe("n")
    tried = range(1, 80)
    assert [*map(form.holds, tried)] == [eval(condition, {"n": n}) for n in tried]


def test_a_search_ends_when_its_time_is_over_and_says_so():
    with record() as trace:
        width = 3
        for _ in range(2000):
            torch.tanh(torch.ones(width))
    before, start = os.times(), trace.seconds
    (found,) = find_conditions(trace, {"width": None}, 3 * start)
    now = os.times()
    spent = now.children_user + now.children_system
    spent -= before.children_user + before.children_system
    assert spent < 5 * start
    assert found.search.is_late
    assert "the time was over" in found.describe_caveat()
