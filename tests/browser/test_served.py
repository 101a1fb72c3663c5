"""The report's script on a page of its own, with a stub for the widget's model."""

from xml.etree import ElementTree as ET

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from meta_magic.trace.module_columns import MODULE_COLUMNS
from meta_magic.trace.op_columns import OP_COLUMNS
from meta_magic.view.page import render_snapshot
from meta_magic.view.payload import pack
from tests.browser.served import ADDRESS, CHOICE, VIEWS, show
from tests.minified import as_from_a_wheel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).relu()


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = nn.Sequential(*(Block() for _ in range(12)), nn.Linear(8, 2))
        model(torch.zeros(3, 8)).sum().backward()
    assert model[0].linear.weight.is_meta
    return trace


PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Waits for the next picture, which has the colours of the scheme."""


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(serve, trace, view):
    page = serve(trace)
    show(page, view)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(PAINTED)
        results = Axe().run(page)
        assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("view", VIEWS)
def test_keys_in_a_view_do_not_reach_the_notebook(serve, trace, view):
    page = serve(trace)
    pane = show(page, view)
    for place in pane.locator("[tabindex='0'], input, button, select").all()[:6]:
        place.focus()
        for key in ("d", "d", "x", "ArrowDown", "ArrowRight", "Enter", "Escape"):
            page.keyboard.press(key)
    assert page.evaluate("() => reached") == []


def test_the_notebooks_own_shortcuts_reach_it(serve, trace):
    page = serve(trace)
    page.get_by_role("treegrid").focus()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Control+s")
    assert page.evaluate("() => reached") == ["Enter", "Control", "s"]


def test_the_views_are_chosen_by_keyboard(serve, trace, expect):
    page = serve(trace)
    page.get_by_role("tab", name="Modules").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Charts")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Charts")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Modules")).to_be_visible()


def test_materialize_sends_the_choice_that_is_shown(serve, trace):
    page = serve(trace)
    page.get_by_label("device").select_option("cuda:0")
    page.get_by_role("button", name="Materialize").click()
    choice = {**CHOICE, "device": "cuda:0"}
    assert page.evaluate("() => sent.at(-1)") == {"kind": "start", "choice": choice}


def test_what_python_says_is_shown(serve, trace, expect):
    page = serve(trace)
    panel = page.get_by_role("group", name="Materialize")
    page.evaluate("() => model.set('state', 'running')")
    page.evaluate("() => model.set('progress', 0.25)")
    bar = panel.get_by_role("progressbar")
    expect(bar).to_have_js_property("value", 0.25)
    expect(panel.get_by_role("button", name="Materialize")).to_be_disabled()
    page.evaluate("() => model.set('state', 'failed')")
    page.evaluate("() => model.set('message', 'no room')")
    expect(panel.get_by_text("no room")).to_have_class("mm-message mm-danger")
    expect(bar).to_be_hidden()
    page.evaluate("() => model.set('is_enough', false)")
    expect(panel).to_contain_text("does not fit")


def test_an_older_answer_does_not_undo_a_newer_choice(serve, trace, expect):
    page = serve(trace)
    page.evaluate("() => listeners['msg:custom']()")  # to what is asked at first
    page.get_by_label("device").select_option("cuda:0")
    page.get_by_label("dtype").select_option("float32")
    page.evaluate("() => model.set('choice', { ...traits.choice, device: 'cuda:0' })")
    page.evaluate("() => listeners['msg:custom']()")  # to the first of the two
    expect(page.get_by_label("dtype")).to_have_value("float32")


def test_a_note_leads_to_its_line(serve, expect):
    with record() as trace:
        torch.zeros(3, 1) + torch.zeros(3)
    page = serve(trace, roots=[])
    page.get_by_role("button", name="line").first.click()
    expect(page.get_by_role("tabpanel", name="Operators")).to_be_visible()


def test_a_resized_table_stays_where_it_was_scrolled(serve, trace, expect):
    page = serve(trace)
    operators = show(page, "Operators")
    grid = operators.get_by_role("grid")
    grid.evaluate("grid => { grid.scrollTop = 600; }")
    page.set_viewport_size({"width": 900, "height": 900})
    expect(operators.get_by_role("row").filter(has_text="aten").first).to_be_visible()
    assert grid.evaluate("grid => grid.scrollTop") == 600
    show(page, "Flow")
    show(page, "Operators")
    expect(grid).to_have_js_property("scrollTop", 600)


@pytest.mark.parametrize(
    ("view", "columns"), [("Operators", OP_COLUMNS), ("Modules", MODULE_COLUMNS)]
)
def test_columns_are_shown_as_they_are_described(serve, trace, expect, view, columns):
    page = serve(trace)
    headers = show(page, view).get_by_role("columnheader")
    columns = [c for c in columns if not c.is_optional and not c.is_extra]
    expect(headers).to_have_text([column.name for column in columns])
    for header, column in zip(headers.all(), columns, strict=True):
        expect(header).to_have_attribute("title", column.help)
        side = "right" if column.is_number else "left"
        expect(header).to_have_css("text-align", side)
        expect(header).to_have_css(
            "position", "sticky" if column.is_pinned else "relative"
        )
        assert header.bounding_box()["width"] >= column.width - 0.1


def test_two_reports_of_a_page_have_ids_of_their_own(page, trace):
    pages = [render_snapshot(trace, pack(trace), uid) for uid in ("one", "two")]
    page.route(
        ADDRESS,
        lambda route: route.fulfill(body="".join(pages), content_type="text/html"),
    )
    page.goto(ADDRESS)
    page.locator("#one [role=tab]").first.wait_for()
    page.locator("#two [role=tab]").first.wait_for()
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_minified_all_views_are_drawn(page, trace, expect):
    with as_from_a_wheel():
        body = render_snapshot(trace, pack(trace))
    page.route(
        ADDRESS, lambda route: route.fulfill(body=body, content_type="text/html")
    )
    page.goto(ADDRESS)
    for name in VIEWS:
        expect(show(page, name).locator("*").first).to_be_attached()
    assert (page.errors, page.logged) == ([], [])


def test_a_report_that_lost_its_kernel_keeps_what_it_shows(serve, trace, expect):
    page = serve(trace)
    page.evaluate("() => { model.send = () => { throw new Error('no kernel'); }; }")
    page.get_by_role("button", name="Materialize").click()
    run = page.get_by_role("row").filter(has_text="0-11")
    run.locator("i").click()
    expect(page.get_by_role("row").filter(has_text="linear").first).to_be_visible()
    expect(page.get_by_text("no answer from the kernel")).to_be_visible(timeout=10_000)


def test_the_flow_is_saved_as_a_picture(serve, trace, tmp_path):
    page = serve(trace)
    flow = show(page, "Flow")
    flow.get_by_label("More", exact=True).click()
    with page.expect_download() as download:
        flow.get_by_role("button", name="Save as SVG").click()
    assert download.value.suggested_filename == "flow.svg"
    download.value.save_as(tmp_path / "flow.svg")
    svg = ET.parse(tmp_path / "flow.svg").getroot()
    texts = svg.iter("{http://www.w3.org/2000/svg}text")
    assert any("Sequential" in "".join(text.itertext()) for text in texts)
    # Of another program than a browser, too.
    assert "color(" not in (tmp_path / "flow.svg").read_text("utf-8")


def test_a_box_that_opens_stays_where_it_was_if_it_fits(serve, trace, expect):
    page = serve(trace, settings={"depth": 1, "height": 640})
    flow = show(page, "Flow")
    run = flow.get_by_role("treeitem", name="12 \N{MULTIPLICATION SIGN} Block")
    expect(run).to_have_attribute("aria-expanded", "false")
    before = run.bounding_box()
    run.click()
    expect(run).to_have_attribute("aria-expanded", "true")
    after = run.bounding_box()
    assert abs(after["x"] - before["x"]) < 2
    assert abs(after["y"] - before["y"]) < 2


def test_the_phases_of_the_flow_are_shown_apart(serve, trace, expect):
    page = serve(trace)
    flow = show(page, "Flow")
    phase = flow.get_by_label("Phase")
    assert phase.locator("option").all_inner_texts() == ["init", "forward", "backward"]
    forward = flow.locator(".mm-flow-status").inner_text()
    phase.select_option("backward")
    expect(flow.locator(".mm-flow-status")).not_to_have_text(forward)


def test_what_is_odd_is_shown_in_every_view(serve, expect):
    with record() as trace:
        torch.zeros(())
        torch.zeros((1,) * 10)
        torch.empty(7, 7, layout=torch.sparse_coo)
        torch.zeros(3, dtype=torch.complex64).conj()
        torch.empty(0, 3)
    page = serve(trace, roots=[])
    operators = show(page, "Operators")
    for text in ("()", "(7, 7)", "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)", "c64", "(0, 3)"):
        expect(operators.get_by_text(text).first).to_be_visible()
    for view in VIEWS:
        expect(show(page, view)).not_to_be_empty()


@pytest.mark.parametrize("width", [700, 1200])
def test_where_the_code_wants_its_tensors_is_a_column(serve, page, expect, width):
    with record() as placed:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3).cuda())
    assert model[1].weight.is_meta
    page.set_viewport_size({"width": width, "height": 700})
    serve(placed)
    modules = show(page, "Modules")
    expect(modules.get_by_role("columnheader", name="place")).to_be_visible()
    expect(modules.get_by_role("gridcell", name="cpu, cuda:0")).to_be_visible()
    operators = show(page, "Operators")
    operators.get_by_role("searchbox").fill("place:cuda:0")
    expect(operators.get_by_role("status")).to_have_text("2 rows")
