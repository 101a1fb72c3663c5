"""The report as text and as HTML."""

import torch
from torch import nn

from meta_magic import record
from meta_magic.trace.module_columns import build_tree
from meta_magic.view.html import render_html
from tests.unit.view.tags import Tags


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.up(x))


def record_blocks(n, last=None):
    with record() as trace:
        blocks = [Block() for _ in range(n)]
        model = nn.Sequential(*blocks, *([last] if last is not None else []))
        model(torch.ones(2, 4))
    return trace


def labels(lines):
    return [line.values[0] for line in lines]


def test_identical_siblings_are_folded_into_one_line():
    trace = record_blocks(12)
    (run,) = build_tree(trace.modules[0], trace.module_calls).children
    each = 4 * 8 + 8 + 8 * 4 + 4
    assert run.values == (
        *("0-11: 12 x Block", 12 * each, 12 * each * 4),
        *(("(2, 4)", "(2, 4)"), ("76, 304 bytes each",)),
    )
    assert labels(run.children) == ["up: Linear", "down: Linear"]


def test_a_sibling_that_differs_ends_the_run():
    trace = record_blocks(3, nn.Linear(4, 4, device="meta"))
    tree = build_tree(trace.modules[0], trace.module_calls)
    assert labels(tree.children) == ["0-2: 3 x Block", "3: Linear"]


def test_the_text_shows_headline_notes_and_tree():
    with record() as trace:
        model = nn.Linear(3, 4)
        model(torch.ones(5, 3))
        torch.ones(5, 1) + torch.ones(5)
    headline, note, repair, tree = str(trace).splitlines()
    assert headline.startswith("16 parameters, 64 bytes · ")
    assert "0 bytes really allocated" in headline
    assert note.startswith("note: line ")
    assert repair.endswith("torch.ones(5, 1).squeeze(-1) + torch.ones(5)")
    assert tree.split() == [
        *("model:", "Linear", "16", "64", "bytes"),
        *("(5,", "3)", "->", "(5,", "4)"),
    ]


def test_the_html_has_no_script_and_nests_well():
    tags = Tags(render_html(record_blocks(3)))
    assert "script" not in tags.tags
    assert "details" in tags.tags
    assert "0-2: 3 x Block" in tags.text


def test_the_html_asks_for_nothing_from_elsewhere():
    html = render_html(record_blocks(1))
    assert "http" not in html
    assert "src=" not in html
    assert "url(" not in html


def test_hostile_names_are_text():
    hostile = type("<img src=x onerror=alert(1)>", (nn.Linear,), {})
    with record() as trace:
        model = nn.ModuleDict({"<b>": hostile(2, 2)})  # noqa: F841
    tags = Tags(render_html(trace))
    assert "img" not in tags.tags
    assert "b" not in tags.tags
    assert "<img src=x onerror=alert(1)>" in tags.text


def test_the_text_is_as_deep_as_it_is_asked_for():
    trace = record_blocks(3)
    names = [
        [line.split(":")[0].strip() for line in trace.summary(depth).splitlines()[1:]]
        for depth in (1, 2, None)
    ]
    whole = ["model", "0-2", "up", "down"]
    assert names == [whole[:2], whole, whole]
