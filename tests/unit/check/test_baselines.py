import pytest
from torch import nn

import meta_magic
from meta_magic.check.baselines import (
    add_changes,
    compare,
    read_baseline,
    write_baseline,
)
from meta_magic.check.records import BlockResult, Diagnostic, Verdict
from meta_magic.designs.design import read_design
from meta_magic.errors import CheckError
from meta_magic.trace.expectations import measure


def record_part(width, depth=2):
    import torch

    with meta_magic.record(as_device="cpu") as trace:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        model(torch.zeros(1, width))
    return BlockResult(
        outcome="right", measured=measure(trace), design=read_design(trace)
    )


@pytest.fixture(scope="module")
def part():
    return record_part(4)


def as_kept(part):
    return {"measured": part.measured, "design": part.design}


def test_wider_layers_change_quantities_and_shapes(part):
    changes = compare(as_kept(part), record_part(8))
    # Two layers of n x n weights and n biases, for 4 and for 8.
    assert changes[0] == "params: 40 -> 144 (+260.0%)"
    assert changes[-1] == (
        "~ model.0-1: 2 x Linear  in_features 4 -> 8, out_features 4 -> 8"
    )


def test_a_verdict_gets_its_changes_as_notes(part):
    verdict = Verdict(name="a.py", parts=(record_part(8),))
    (changed,) = add_changes(verdict, {"a.py": as_kept(part)}).parts
    assert {(found.rule, found.level) for found in changed.diagnostics} == {
        ("changed", "note")
    }
    assert add_changes(verdict, {}) == verdict


def test_what_failed_is_neither_compared_nor_kept(part, tmp_path):
    failed = BlockResult(
        outcome="error",
        diagnostics=(Diagnostic(rule="error", level="error", text="no"),),
        measured={"params": 1},
    )
    verdict = Verdict(name="a.py", parts=(failed,))
    before = {"a.py": as_kept(part)}
    assert add_changes(verdict, before) == verdict
    path = tmp_path / "trace.json"
    write_baseline(path, [verdict], before)
    assert read_baseline(path) == before


def test_a_baseline_of_another_version_is_refused_unless_it_is_rewritten(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"version": 1, "recordings": {}}')
    with pytest.raises(CheckError, match="--update writes it anew"):
        read_baseline(path)
    assert read_baseline(path, is_rewritten=True) == {}


def test_a_baseline_that_is_not_there_is_refused_with_how_to_make_it(tmp_path):
    with pytest.raises(CheckError, match="--update makes it"):
        read_baseline(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "recordings": []}',
        '{"version": 2, "recordings": {"a.py": {}}}',
        '{"version": 2, "recordings": {"a.py": {"measured": {"x": 1}, "design": {}}}}',
    ],
)
def test_a_broken_baseline_is_refused(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(CheckError, match="is no baseline"):
        read_baseline(path)
