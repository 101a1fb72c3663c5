"""``trace.sweep`` and ``trace.scale``: each row has the numbers of a recording."""

import pytest
import torch
from torch import nn

from meta_magic import MetaMagicError, TrialError, record
from meta_magic.trace import progress


def build(width, depth):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


def count(width, depth):
    return depth * width * (width + 1)


@pytest.fixture(scope="module")
def trace():
    width, depth = 8, 2
    with record() as trace:
        build(width, depth)(torch.ones(4, width))
    return trace


def test_each_row_is_a_recording(trace):
    table = trace.sweep(width=[8, 12], depth=[1, 3])
    for row in table.itertuples():
        with record() as again:
            build(row.width, row.depth)(torch.ones(4, row.width))
        assert row.params == count(row.width, row.depth)
        assert row.flops == again.flops
        assert row.peak_nbytes == again.memory.peak_nbytes
        assert row.ops == len(again.ops)
    assert table["error"].isna().all()


def test_a_size_that_fails_is_a_row_with_the_reason():
    side = 8
    with record() as trace:
        torch.ones(side, 3).view(4, -1)
    table = trace.sweep(side=[4, 5, 12], metrics=["ops"])
    assert table["ops"].isna().tolist() == [False, True, False]
    assert "shape '[4, -1]' is invalid" in table["error"][1]
    assert table.columns.tolist() == ["side", "ops", "fits", "error"]


def test_a_block_that_leaves_something_behind_is_recorded_in_a_process_each():
    seen, size = [], 1
    with record() as trace:
        seen.append(size)
        torch.ones(len(seen), size)
    expected = trace.sweep(size=[3, 5, 7])["peak_nbytes"].tolist()
    # A second run in one process would find what the first one put into the list.
    assert expected == [4 * 3, 4 * 5, 4 * 7]


def test_a_frontier_is_the_largest_value_within_a_limit(trace):
    widths = [*range(8, 300)]
    table = trace.sweep(depth=[1, 4], width=widths, until="params<20000")
    best = table[table["frontier"]].set_index("depth")["width"]
    for depth in (1, 4):
        assert best[depth] == max(w for w in widths if count(w, depth) < 20_000)
    assert len(table) < 24
    nothing = trace.sweep(width=[100, 200], until="params<=10")
    assert not nothing["frontier"].any()


@pytest.mark.parametrize("target", [500, 7_000, 123_456])
def test_a_family_comes_nearest_to_its_targets(trace, target):
    table = trace.scale("width", range(4, 400), [target], depth=[3])
    nearest = min(range(4, 400), key=lambda w: abs(count(w, 3) - target))
    assert table["width"].tolist() == [nearest]
    assert table["target"].tolist() == [target]


def test_a_target_that_no_value_comes_near_is_told(trace):
    table = trace.scale("width", range(4, 12), [1, count(8, 2), 1e9])
    assert table["width"].tolist() == [4, 8, 11]
    assert table["error"].fillna("").tolist() == [
        "width=4 is the smallest value that was given",
        "",
        "width=11 is the largest value that was given",
    ]


def test_an_interrupt_keeps_what_was_recorded(trace, monkeypatch):
    monkeypatch.setattr("meta_magic.trials.sweeps.AT_A_TIME", 1)
    monkeypatch.setattr("meta_magic.trials.sweeps.PATIENCE", 0)

    def interrupt(text):
        if text.startswith("2 of 3"):
            raise KeyboardInterrupt

    monkeypatch.setattr(progress, "OUTLETS", [interrupt])
    table = trace.sweep(width=[8, 9, 10])
    assert table["error"].fillna("").tolist() == ["", "", "interrupted"]
    assert table["params"][1] == count(9, 2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "a sweep needs a name and its values"),
        ({"height": [8]}, "no name 'height'"),
        ({"width": [0]}, "a sweep needs positive integers"),
        ({"width": [8], "metrics": ["joules"]}, "'joules' is no metric of a sweep"),
        ({"width": [8], "until": "joules<3"}, "'joules' is no quantity of a budget"),
        ({"width": [8], "until": "params<9, flops<9"}, "a sweep has one limit"),
        ({"width": [8], "until": "param_nbytes<3"}, "is no metric of a sweep"),
        ({"width": [8], "device": "h1000"}, "h1000"),
    ],
)
def test_what_cannot_be_swept_is_refused(trace, asked, message):
    with pytest.raises(MetaMagicError, match=message):
        trace.sweep(**asked)


def test_a_family_needs_a_value_for_each_target(trace):
    with pytest.raises(TrialError, match="depth has 1 values for 2 targets"):
        trace.scale("width", [8], [1, 2], depth=[3])
