"""The report where it can stand: in a notebook, trusted or not, and in a file."""

import json

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from tests.browser.lab import RUN, open_in_lab
from tests.browser.served import VIEWS

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(12)))
y = model(torch.ones(2, 8))""",
    "pass",
)
LIVE = ".mm-live:not(.mm-root)"
WAIT = 60_000

WATCH = """() => {
  window.heights = new Set();
  const cell = document.querySelectorAll(".jp-CodeCell")[1];
  const look = () => {
    if (!cell.isConnected) return;
    heights.add(Math.round(cell.getBoundingClientRect().height));
    requestAnimationFrame(look);
  };
  look();
}"""
"""Notes how high the second cell is in each frame."""


@pytest.fixture
def notebook(show_cells, expect):
    """The page of a notebook whose second cell shows a live report."""
    page = show_cells(*CELLS)
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    expect(page.locator(LIVE)).to_be_visible(timeout=WAIT)
    return page


def test_what_is_below_stays_where_it_is_however_long_the_cell_runs(show_cells, expect):
    is_again = "globals().get('ran', False)"
    slow = f"{CELLS[1]}\nimport time\ntime.sleep({is_again} and 5)\nran = True"
    page = show_cells(CELLS[0], slow, "pass")
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    expect(page.locator(LIVE)).to_be_visible(timeout=WAIT)
    page.evaluate(WATCH)
    page.evaluate(RUN, 1)
    expect(page.locator(LIVE)).to_be_visible(timeout=WAIT)
    page.wait_for_timeout(500)
    assert len(page.evaluate("() => [...heights]")) == 1


def test_axe_finds_nothing_in_the_report_in_a_notebook(notebook):
    report = notebook.locator(LIVE)
    for view in VIEWS:
        report.get_by_role("tab", name=view).click()
        results = Axe().run(notebook, context=LIVE)
        assert results.violations_count == 0, results.generate_report()


def test_in_an_untrusted_notebook_the_tree_is_indented(notebook, lab, expect):
    url, root = lab
    notebook.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    book = json.loads((root / "shared.ipynb").read_text("utf-8"))
    book["cells"][2]["source"] = "pass  # by somebody else"
    (root / "other.ipynb").write_text(json.dumps(book), "utf-8")
    open_in_lab(notebook, url, "other.ipynb")
    tree = notebook.locator(".jp-RenderedHTML").first
    rows = [tree.get_by_text(text) for text in ("model:", "0-11:", "0: Linear")]
    lefts = [row.bounding_box()["x"] for row in rows]
    assert lefts == sorted(set(lefts))
    assert notebook.locator("script", has_text="report.start(").count() == 0
    # The mark by which a line opens stands in the line.
    summary = tree.locator("summary").first.bounding_box()
    assert summary["height"] < 2 * rows[0].bounding_box()["height"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A report of its own."""
    with record() as trace:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)))
        model(torch.ones(2, 8))
    path = tmp_path_factory.mktemp("file") / "report.html"
    trace.to_html(path)
    return path.as_uri()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_a_file(file, page, view):
    page.goto(file)
    page.get_by_role("tab", name=view).click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        results = Axe().run(page)
        assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("view", VIEWS)
def test_the_views_of_a_file_take_what_the_window_has(file, page, view):
    page.goto(file)
    page.get_by_role("tab", name=view).click()
    pane = page.get_by_role("tabpanel", name=view)
    for width, height in ((1200, 900), (700, 500)):
        page.set_viewport_size({"width": width, "height": height})
        box = pane.bounding_box()
        assert box["x"] + box["width"] == pytest.approx(width - 16)
        assert box["y"] + box["height"] == pytest.approx(height - 16)
    assert page.errors == []
