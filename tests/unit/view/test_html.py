"""The report as text and as HTML."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.materializing.report import FilledTensor, MaterializeReport
from meta_magic.trace.module_columns import build_tree
from meta_magic.view import page
from meta_magic.view.choices import render_materialize_report
from meta_magic.view.html import render_html
from tests.unit.view.panels import SCRIPT

VOID = frozenset({"img", "br", "input"})


class Tags(HTMLParser):
    """Collects tags and text, and checks the nesting."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.cells, self._open = [], [], []
        self.feed(html)
        assert self._open == []

    @property
    def text(self):
        return "".join(self.cells)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self.cells.append(data)


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


# The report of a materialization as HTML


def filled(name, filled_by="replay", tied_to=None):
    return FilledTensor(
        name=name,
        kind="parameter",
        filled_by=filled_by,
        shape=(2, 3),
        dtype=torch.bfloat16,
        tied_to=tied_to,
    )


def report_on(*tensors, module="Model", notes=()):
    return MaterializeReport(
        module=module,
        device=torch.device("cpu"),
        tensors=tensors,
        nbytes=4096,
        peak_nbytes=8192,
        n_operators=7,
        seconds=1.5,
        notes=notes,
    )


def test_the_report_has_a_row_for_each_tensor():
    tags = Tags(render_materialize_report(report_on(filled("a"), filled("b", "kept"))))
    assert tags.cells[0] == "Model on cpu · 1 tensor, 4.0 KiB · 1.50 s"
    assert tags.cells[1] == "1 by replay, 1 kept as before"
    assert tags.cells[9:] == [
        *("a", "parameter", "(2, 3)", "bfloat16", "12 bytes", "replay"),
        *("b", "parameter", "(2, 3)", "bfloat16", "12 bytes", "kept"),
    ]


def test_what_is_uninitialized_comes_first_and_in_red():
    html = render_materialize_report(
        report_on(filled("good"), filled("bad", "uninitialized"))
    )
    cells = Tags(html).cells
    assert cells.index("bad") < cells.index("good")
    assert "UNINITIALIZED: 1 tensor holds whatever was in memory before" in cells
    assert '<tr class="mm-danger"><th scope="row">bad' in html
    assert html.count('class="mm-danger"') == 2


def test_what_is_left_on_meta_stands_in_red_and_the_rest_of_it_in_a_note():
    report = report_on(filled("good"), filled("state", "left on meta"))
    html = render_materialize_report(replace(report, on_meta=("batch", SCRIPT)))
    cells = Tags(html).cells
    assert "LEFT ON META: 1 tensor holds no values, and what uses it fails" in cells
    assert '<tr class="mm-danger"><th scope="row">state' in html
    assert "Model on cpu · 1 tensor, 4.0 KiB · 1.50 s" in cells
    assert any(cell.startswith("still on meta: 2 (batch, <img") for cell in cells)
    assert "img" not in Tags(html).tags


def test_a_long_table_is_folded_and_a_very_long_one_is_cut():
    short = render_materialize_report(report_on(*map(filled, "abc")))
    assert "<details open>" in short
    many = (filled(f"t{i}") for i in range(1003))
    html = render_materialize_report(report_on(*many))
    assert "<details>" in html
    assert "… 3 more" in html
    assert "t999" in html
    assert "t1000" not in html


def test_hostile_names_are_text_in_the_report():
    html = render_materialize_report(
        report_on(filled(SCRIPT, tied_to=SCRIPT), module=SCRIPT, notes=(SCRIPT,))
    )
    tags = Tags(html)
    assert "img" not in tags.tags
    assert sum(SCRIPT in cell for cell in tags.cells) == 4


# What a figure of the flow needs; ``tests/browser/test_figure.py`` draws some


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    return trace


def test_without_a_browser_the_error_says_what_to_do(trace, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "BROWSERS", ())
    monkeypatch.delenv("META_MAGIC_BROWSER", raising=False)
    with pytest.raises(FileNotFoundError, match="install Chromium or Chrome, or name"):
        trace.figure(tmp_path / "flow")
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_draws_nothing_is_named(trace, monkeypatch, tmp_path):
    monkeypatch.setenv("META_MAGIC_BROWSER", "true")
    with pytest.raises(RuntimeError, match="true drew no figure; save one from the"):
        trace.figure(tmp_path / "flow")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_style_lists_the_styles(trace, tmp_path):
    with pytest.raises(ValueError, match="no style 'poster'; there are paper, report"):
        trace.figure(tmp_path / "flow", style="poster")
