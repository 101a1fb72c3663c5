"""What a saved report stores of other numbers, and how it writes the differences."""

import gzip
import json
import time

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.view.payload import pack
from meta_magic.view.sliders import (
    MAX_TEXT,
    Designs,
    choose_sizes,
    find_changes,
    store_designs,
)


def offer(name, values, value):
    return {"name": name, "values": values, "value": value}


def test_the_ends_come_first_and_then_the_middles():
    offers = [offer("width", [*range(10, 19)], 14), offer("depth", [1, 2], 2)]
    chosen = [*choose_sizes(offers)]
    assert chosen[:2] == [{"width": 10, "depth": 2}, {"width": 14, "depth": 1}]
    assert all(one["width"] == 14 for one in chosen if one["depth"] == 1)
    widths = [one["width"] for one in chosen if one["depth"] == 2]
    assert widths == [10, 18, 12, 16, 11, 13, 15, 17]  # without 14


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}, None),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"b": ["y"]}),
        ({"a": 1}, {"a": 1, "b": None}, {"b": [None]}),
        ({"a": 1, "b": 2}, {"a": 1}, [{"a": 1}]),
        ([{"n": 1, "m": "same"}, 2], [{"n": 3, "m": "same"}, 2], {"0": {"n": [3]}}),
        ([1, 2], [3, 4], [[3, 4]]),
        ([1, 2, 3, 4], [1, 2, 8, 9, 4], [2, 1, [8, 9]]),
        ([1, 1, 1], [1, 1], [2, 0, []]),
        ([1, 1], [1, 1, 1], [2, 0, [1]]),
    ],
)
def test_only_what_changes_is_written(old, new, changes):
    assert find_changes(old, new) == changes


def keep(n_values, width=4, n_layers=1):
    with record(params={"width": range(1, n_values + 1)}) as trace:
        width = 4
        layers = [nn.Linear(width, width) for _ in range(n_layers)]
        nn.Sequential(*layers)(torch.ones(2, width))
    return trace, pack(trace)


def test_a_number_that_fails_is_kept_with_its_rule():
    with record(params={"width": [3, 4, 8]}) as trace:
        width = 4
        torch.ones(2, width).view(-1, 4)
    stored = store_designs(trace, pack(trace), Designs(), 30)
    found = json.loads(gzip.decompress(stored))
    assert [one["sizes"]["width"] for one in found["answers"]] == [3, 8]
    assert "6 elements" in found["answers"][0]["error"]
    assert found["sliders"][0]["values"] == [3, 4, 8]
    assert all(each[0] is None for each in found["parts"].values())


def test_what_is_stored_takes_at_most_50_kb(monkeypatch):
    trace, packed = keep(40)
    designs = Designs()
    whole = store_designs(trace, packed, designs, 60)
    most = len(whole) * 16 // 13 - 1
    assert most < MAX_TEXT == 50_000
    monkeypatch.setattr("meta_magic.view.sliders.MAX_TEXT", most)
    less = store_designs(trace, packed, designs, 60)
    values = [
        json.loads(gzip.decompress(one))["sliders"][0]["values"]
        for one in (whole, less)
    ]
    assert len(less) * 16 / 13 <= most
    assert 2 < len(values[1]) < len(values[0])


def test_no_design_is_stored_of_what_cannot_run_again(tmp_path):
    with record(params={"n": [1, 2]}) as trace:
        n = 1
        (tmp_path / "out").write_text("x" * n)
        torch.ones(n)
    assert store_designs(trace, pack(trace), Designs(), 30) == b""


def test_a_page_written_within_a_recording_has_no_designs():
    trace, packed = keep(3)
    with record():
        assert store_designs(trace, packed, Designs(), 30) == b""
    with RARE_COLLECTION.enter_idle():
        assert RARE_COLLECTION.n_entered == 0
        assert store_designs(trace, packed, Designs(), 30) != b""


def test_a_number_that_takes_long_is_not_waited_for():
    with record(params={"rounds": [1, 400]}) as trace:
        rounds = 1
        for _ in range(rounds):
            time.sleep(0.1)
    began = time.monotonic()
    store_designs(trace, pack(trace), Designs(), seconds=0.5)
    assert time.monotonic() - began < 8  # a slider waits for ten seconds
