"""Sliders: each move shows the cell as recorded with that number, and no other."""

import base64
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.magic.reports import build_outputs
from meta_magic.trace.units import format_bytes
from meta_magic.view.page import render_page
from meta_magic.view.sliders import Designs, offer_sliders
from meta_magic.view.widgets import close_reports
from tests.browser.lab import RUN

pytestmark = pytest.mark.browser

WAIT = 60_000
WIDTHS = range(8, 33, 4)

CONNECT = """() => {
  const { send } = window.model;
  window.model.send = async (message) => {
    if (message.kind !== "vary") return send(message);
    sent.push(message);
    const { packed = [], ...answer } = await window.ask_kernel(message);
    const buffers = packed.map((one) =>
      new DataView(Uint8Array.from(atob(one), (c) => c.charCodeAt(0)).buffer));
    listeners["msg:custom"]({ kind: "vary", id: message.id, ...answer }, buffers);
  };
}"""
"""Lets the kernel's code in this process answer the page."""

MOVE_AT_RANDOM = """async ([n, expected]) => {
  const wrong = [];
  const slider = document.querySelector(".mm-slider input");
  const number = document.querySelector(".mm-slider output");
  const report = document.querySelector(".mm-sliders").nextElementSibling;
  let is_over = false;
  const look = () => {
    const { textContent } = report.querySelector(".mm-header > p");
    const is_right = textContent.startsWith(expected[number.textContent]);
    if (!report.classList.contains("mm-waiting") && !is_right)
      wrong.push([number.textContent, textContent]);
    if (!is_over) requestAnimationFrame(look);
  };
  look();
  let shown = 0;
  for (let i = 0; i < n; i += 1) {
    slider.value = Math.floor(Math.random() * (Number(slider.max) + 1));
    slider.dispatchEvent(new Event("input"));
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 120));
    if (!report.classList.contains("mm-waiting")) shown += 1;
  }
  while (report.classList.contains("mm-waiting"))
    await new Promise((resolve) => setTimeout(resolve, 20));
  await new Promise((resolve) => setTimeout(resolve, 100));
  is_over = true;
  return { wrong, shown };
}"""


def build(width, depth=2):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


@pytest.fixture(scope="module")
def trace():
    width = 16
    with record(params={"width": WIDTHS}) as trace:
        model = build(width)
        y = model(torch.ones(2, width))
        y.view(2, 4, width // 4).view(2, -1)
        y.view(-1, 12 if width == 24 else 4).sum().backward()
    return trace


@pytest.fixture
def connect(serve):
    """Show a report whose questions the kernel's code answers; its page."""

    def show(trace, **traits):
        page = serve(trace, sliders=offer_sliders(trace), **traits)
        designs = Designs()

        def ask(message):
            answer = designs.answer(trace, message)
            packed = answer.pop("buffers", [])
            return {
                **answer,
                "packed": [base64.b64encode(one).decode() for one in packed],
            }

        page.expose_function("ask_kernel", ask)
        page.evaluate(CONNECT)
        return page

    return show


def move(page, name, position):
    page.get_by_role("slider", name=name).fill(str(position))


def test_a_move_shows_the_cell_with_that_number(connect, trace, expect):
    page = connect(trace)
    head = page.locator(".mm-header > p").first
    assert head.text_content().startswith("544 parameters")  # 2 * 16 * 17
    page.get_by_role("tab", name="Operators").click()
    move(page, "width", len(WIDTHS) - 1)
    expect(head).to_contain_text("2.1 K parameters")  # 2 * 32 * 33
    expect(page.get_by_role("tab", name="Operators", selected=True)).to_be_visible()
    status = page.locator(".mm-sliders [role=status]")
    expect(status).to_contain_text("width 16 -> 32; +1.6 K parameters; ")
    page.get_by_role("button", name="Reset").press("Enter")
    expect(head).to_contain_text("544 parameters")
    expect(status).to_be_empty()


def test_values_are_recorded_ahead_while_the_pointer_is_on_the_slider(connect, trace):
    page = connect(trace)
    page.get_by_role("slider", name="width").hover()
    page.wait_for_function("sent.some(({ kind }) => kind === 'vary')")
    (asked,) = page.evaluate("sent.filter(({ kind }) => kind === 'vary')")
    wanted = {one["width"] for one in asked["with"]}
    assert "sizes" not in asked
    assert wanted == {*WIDTHS} - {16}


def test_a_slider_that_is_dragged_shows_where_it_ends(connect, expect):
    with record(params={"width": WIDTHS}) as trace:
        width = 16
        print(build(width)(torch.ones(2, width)).shape)
        torch.ones(2).relu()
    page = connect(trace)
    box = page.get_by_role("slider", name="width").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"], steps=9)
    page.mouse.up()
    head = page.locator(".mm-header > p").first
    expect(head).to_contain_text("2.1 K parameters")  # 2 * 32 * 33
    expect(page.locator(".mm-printed")).to_have_text("torch.Size([2, 32])")


def test_numbers_are_those_of_a_new_recording(connect, trace, expect):
    page = connect(trace)
    move(page, "width", 0)
    head = page.locator(".mm-header > p").first
    expect(head).to_contain_text("144 parameters")
    with record() as again:
        width = 8
        model = build(width)
        y = model(torch.ones(2, width))
        y.view(2, 4, width // 4).view(2, -1)
        y.view(-1, 12 if width == 24 else 4).sum().backward()
    peak = format_bytes(again.memory.peak_nbytes)
    assert f"{len(again.ops)} operators" in head.text_content()
    assert f"peak {peak} on cpu" in head.text_content()


def test_two_hundred_moves_never_show_another_number(connect, trace):
    page = connect(trace)
    runs = [width for width in WIDTHS if width != 24]
    expected = {str(width): f"{2 * width * (width + 1):,} parameters" for width in runs}
    expected["24"] = ""
    expected = {
        width: text.replace("2,112", "2.1 K")
        .replace("1,624", "1.6 K")
        .replace("1,200", "1.2 K")
        for width, text in expected.items()
    }
    found = page.evaluate(MOVE_AT_RANDOM, [200, expected])
    assert found["wrong"] == []
    assert found["shown"] > 20


def test_a_number_that_fails_keeps_the_picture_and_names_the_rule(connect, expect):
    side = 8
    with record(params={"side": range(4, 17)}) as trace:
        x = torch.ones(side, 3)
        x.view(4, -1)
        x.relu(), x.relu(), x.relu()
    page = connect(trace)
    head = page.locator(".mm-header > p").first.text_content()
    move(page, "side", 6)  # 10
    status = page.locator(".mm-sliders [role=status]")
    expect(status).to_contain_text("10 * 3 = 30 elements cannot be 4 x -1")
    expect(status).to_have_class("mm-danger")
    assert page.locator(".mm-header > p").first.text_content() == head
    page.get_by_role("button", name="Nearest that runs").click()
    expect(page.locator(".mm-slider output")).to_have_text(re.compile("^(8|12)$"))
    expect(status).not_to_have_class("mm-danger")


@pytest.mark.parametrize(
    ("send", "told"),
    [
        ("() => {}", "no answer from the kernel yet: it is busy, or it was restarted"),
        ("() => { throw new Error('gone'); }", "the kernel is gone, or was restarted"),
    ],
    ids=["busy", "dead"],
)
def test_without_an_answer_of_the_kernel_no_picture_changes(
    serve, trace, expect, send, told
):
    page = serve(trace, sliders=offer_sliders(trace))
    page.evaluate(f"() => {{ model.send = {send}; }}")
    head = page.locator(".mm-header > p").first.text_content()
    for position in range(5):
        move(page, "width", position)
    expect(page.locator(".mm-sliders [role=status]")).to_contain_text(told)
    expect(page.locator(".mm-waiting")).to_have_count(1)
    assert page.locator(".mm-header > p").first.text_content() == head
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".mm-waiting")).to_have_count(0)


def test_designs_are_compared_with_the_pinned_one(connect, trace, expect):
    page = connect(trace)
    status = page.locator(".mm-sliders [role=status]")
    move(page, "width", 0)
    expect(status).to_contain_text("width 16 -> 8")
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(status).to_contain_text("no difference")
    move(page, "width", 1)
    expect(status).to_contain_text("width 8 -> 12")
    expect(page.get_by_text("2 changes")).to_have_count(0)
    page.get_by_text("1 change").click()
    expect(page.locator(".mm-changes li")).to_contain_text("model.0-1: 2 x Linear")
    page.get_by_role("button", name="Show pinned").click()
    expect(page.locator(".mm-slider output")).to_have_text("8")


def test_what_fits_and_what_materialize_needs_follow_a_move(connect, trace, expect):
    page = connect(trace)
    move(page, "width", len(WIDTHS) - 1)
    panel = page.get_by_role("group", name="Materialize")
    expect(panel).to_contain_text("needs 8.3 KiB with these numbers")  # 2 * 32 * 33 * 4
    expect(panel.get_by_role("button", name="Materialize")).to_be_disabled()
    page.get_by_role("tab", name="Memory").click()
    page.get_by_role("button", name="Work out").click()
    asked = page.evaluate("sent.findLast(({ kind }) => kind === 'fit')")
    assert asked["at"] == {"width": 32}
    page.get_by_role("button", name="Reset").click()
    expect(panel).to_contain_text("needs 1.0 KiB")
    page.get_by_role("button", name="Work out").click()
    asked = page.evaluate("sent.findLast(({ kind }) => kind === 'fit')")
    assert asked["at"] == {}


def test_what_a_design_lacks_stands_where_it_was(connect, expect):
    with record(params={"depth": [2, 4]}) as trace:
        depth = 4
        model = nn.Sequential(nn.Embedding(9, 8), *build(8, depth))
        model(torch.ones(2, dtype=torch.long))
    page = connect(trace)
    move(page, "depth", 0)
    page.get_by_role("tab", name="Flow").click()
    flow = page.get_by_role("tabpanel", name="Flow")
    expect(flow.get_by_text("model.3-4: 2 x Linear")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    expect(flow.get_by_role("treeitem", name="model: Sequential")).to_be_visible()
    expect(flow.get_by_text("2 x Linear")).to_have_count(0)


def test_a_slider_without_its_number_says_why(serve):
    with record(params={"height": [1, 2]}) as trace:
        torch.ones(2), torch.ones(3), torch.ones(4), torch.ones(5)
    page = serve(trace, sliders=offer_sliders(trace))
    slider = page.get_by_role("slider", name="height")
    assert slider.is_disabled()
    assert "no name 'height'" in page.locator(".mm-slider").text_content()


@pytest.fixture
def open_saved(page, tmp_path):
    """Open the saved report of a trace; its page."""

    def show(trace, render=render_page):
        path = tmp_path / "report.html"
        path.write_text(render(trace), encoding="utf-8")
        page.goto(path.as_uri())
        page.get_by_role("slider").first.wait_for()
        return page

    yield show
    assert (page.errors, page.logged) == ([], [])


READ = """() => {
  const report = document.querySelector(".mm-sliders").nextElementSibling;
  const status = document.querySelector(".mm-sliders [role=status]").textContent;
  const ask = report.querySelector(".mm-work-out"); // what only a kernel answers
  if (ask) ask.hidden = true;
  return report.classList.contains("mm-waiting") && !status.startsWith("line")
    ? "" : status + report.innerText.replace(/[0-9.]+ m?s /, "");
}"""
"""What a report shows, without the seconds that the recording took; "" if it waits."""

VIEWS = ("Modules", "Operators", "Memory")


def read_all(page, positions):
    """Return what three views show at each position of the first slider."""
    texts = []
    for position in positions:
        page.get_by_role("slider").first.fill(str(position))
        for view in VIEWS:
            page.get_by_role("tab", name=view).click()
            texts.append(page.wait_for_function(READ).json_value())
    return texts


def test_a_saved_report_shows_what_a_kernel_shows(connect, open_saved, trace):
    positions = [at for at, width in enumerate(WIDTHS) if width != 16]  # the cell's
    live = read_all(connect(trace, settings={}), positions)
    assert read_all(open_saved(trace), positions) == live
    assert len(set(live)) == len(VIEWS) * len(positions)


def test_a_saved_report_says_what_is_not_recorded(open_saved, expect):
    with record(params={"width": range(2, 400), "depth": [1, 2, 3]}) as trace:
        width = 16
        depth = 2
        build(width, depth)(torch.ones(2, width))
    page = open_saved(trace)
    expect(page.locator(".mm-slider").first).to_contain_text(
        re.compile("1[5-8] of 398 values are recorded")
    )
    head, status = page.locator(".mm-header > p").first, page.locator("p[role=status]")
    move(page, "width", 0)
    expect(head).to_contain_text("12 parameters")  # 2 * 2 * 3
    page.get_by_role("slider", name="depth").press("End")
    expect(status).to_contain_text("width = 2, depth = 3 is not recorded")
    expect(head).to_contain_text("12 parameters")
    page.get_by_role("button", name="Reset").click()
    expect(status).to_be_empty()
    page.get_by_role("slider", name="depth").press("End")
    expect(head).to_contain_text("816 parameters")  # 3 * 16 * 17
    expect(page.locator(".mm-slider-bar button")).to_have_text(["Reset"])


def render_output(trace):
    """Return what a notebook stores of a cell's report."""
    shell = SimpleNamespace(kernel=None)
    settings = {"depth": None, "height": 420, "parameters": True}
    outputs = build_outputs(shell, trace, "a cell", settings)
    close_reports("a cell")
    return "<!doctype html><meta charset=utf-8>" + outputs.bundle["text/html"]


def test_the_saved_output_of_a_cell_moves(open_saved, trace, expect):
    page = open_saved(trace, render_output)
    page.get_by_role("slider").first.press("Home")
    head = page.locator(".mm-header > p").first
    expect(head).to_contain_text("144 parameters")  # 2 * 8 * 9


LOAD = "%load_ext meta_magic\nimport torch\nfrom torch import nn"
CELL = """%%meta -p width=8..32:4
width = 16
model = nn.Linear(width, width)
model(torch.ones(2, width)).relu().sum()"""
TEXT = "() => jupyterapp.shell.currentWidget.content.model.sharedModel.cells[1].source"


def test_a_slider_changes_the_text_of_its_cell(show_cells, expect):
    page = show_cells(LOAD, CELL)
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    slider = page.get_by_role("slider", name="width")
    expect(slider).to_be_visible(timeout=WAIT)
    slider.focus()
    slider.press("ArrowRight")
    status = page.locator(".mm-sliders [role=status]")
    expect(status).to_contain_text("width 16 -> 20", timeout=WAIT)
    page.get_by_role("button", name="Put into the cell").click()
    expect(status).to_contain_text("the cell now has width = 20", timeout=WAIT)
    assert page.evaluate(TEXT) == CELL.replace("= 16", "= 20")
    assert page.errors == []


TWO = """%%meta
model = nn.Sequential(
    nn.Linear(12, 12), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
y = model(torch.ones(3, 12))"""


def test_a_number_in_the_text_gets_a_slider(show_cells, expect):
    page = show_cells(LOAD, TWO)
    page.evaluate(RUN, 0)
    page.evaluate(RUN, 1)
    live = page.locator(".jp-OutputArea-child:has(.mm-live:not(.mm-root))")
    live.get_by_role("tab", name="Source").click()
    numbers = live.locator(".mm-source-number")
    expect(numbers).to_have_text(["12", "12", "12", "4", "4", "2", "3", "12"])
    expect(live.locator(".mm-sliders")).to_be_hidden()
    numbers.last.press("Enter")
    slider = live.get_by_role("slider", name="ones[1] (line 4)")
    expect(slider).to_be_focused(timeout=WAIT)
    slider.press("ArrowRight")
    status = live.locator(".mm-sliders [role=status]")
    expect(status).to_contain_text(
        "line 4: dimension 1 of torch.ones(3, 12) (13) must", timeout=WAIT
    )
    live.get_by_role("button", name="Reset").click()
    numbers.last.click()
    expect(live.get_by_role("slider")).to_have_count(1)
    numbers.nth(5).click()
    slider = live.get_by_role("slider", name="Linear[1] (line 3)")
    expect(slider).to_be_focused(timeout=WAIT)
    slider.press("ArrowRight")
    expect(status).to_contain_text("Linear[1] (line 3) 2 -> 3; +5 param", timeout=WAIT)
    expect(numbers.nth(5)).to_have_attribute("data-now", "3")
    expect(live.locator(".mm-source-shapes").last).to_contain_text("(3, 3) f32")
    live.get_by_role("button", name="Put into the cell").click()
    expect(status).to_contain_text("the cell now has", timeout=WAIT)
    assert page.evaluate(TEXT) == TWO.replace("Linear(4, 2)", "Linear(4, 3)")
    assert page.errors == []
