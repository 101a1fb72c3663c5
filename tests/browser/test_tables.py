"""What the tables say of a model, and the line that stands for a small cell."""

import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from meta_magic.view.html import render_html


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(8, 16)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = Net()
        model(torch.zeros(3, 8))
    assert model.head.weight.is_meta
    return trace


def test_a_closed_list_says_what_it_holds(serve, trace, expect):
    page = serve(trace, settings={"depth": 1, "height": 420, "parameters": True})
    row = page.get_by_role("row").filter(has_text="layers")
    expect(row.get_by_role("gridcell").nth(1)).to_have_text("6 x Block")
    expect(row).to_have_attribute("aria-expanded", "false")


@pytest.mark.parametrize("width", [700, 1440])
def test_names_keep_their_class_where_the_table_scrolls_sideways(
    serve, page, trace, width
):
    page.set_viewport_size({"width": width, "height": 700})
    serve(trace)
    page.get_by_role("treegrid").evaluate("grid => { grid.scrollLeft = 400; }")
    row = page.get_by_role("row").filter(has_text="layers")
    name, kind = (row.get_by_role("gridcell").nth(i).bounding_box() for i in (0, 1))
    left = page.get_by_role("treegrid").bounding_box()["x"]
    assert abs(name["x"] - left) < 2
    assert abs(kind["x"] - name["x"] - name["width"]) < 2


@pytest.mark.parametrize("column", ["name", "class", "bytes", "FLOPs", "share"])
def test_a_click_on_any_column_sorts_by_it(serve, trace, expect, column):
    page = serve(trace)
    header = page.get_by_role("columnheader", name=column)
    header.click()
    # Of numbers the largest are what is looked for.
    ways = ["ascending", "descending"]
    first, second = ways if column in ("name", "class") else ways[::-1]
    expect(header).to_have_attribute("aria-sort", first)
    rows = page.get_by_role("treegrid").get_by_role("row")
    before = rows.all_inner_texts()[1:]
    header.click()
    expect(header).to_have_attribute("aria-sort", second)
    after = rows.all_inner_texts()[1:]
    assert sorted(before) == sorted(after)
    assert before != after


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_cell_of_few_operators_is_a_line_that_opens(serve, expect, scheme):
    with record() as trace:
        torch.ones(2, 3) + 1
    page = serve(trace, roots=[])
    page.emulate_media(color_scheme=scheme)
    line = page.locator(".mm-live summary")
    expect(line).to_contain_text("2 operators")
    expect(line).to_contain_text("ones, add")
    expect(page.get_by_role("tab")).to_have_count(0)
    assert page.locator(".mm-live").bounding_box()["height"] < 40
    assert Axe().run(page).violations_count == 0
    line.press("Enter")
    expect(page.get_by_role("row").filter(has_text="aten.add")).to_be_visible()
    assert Axe().run(page).violations_count == 0


def test_the_tree_is_indented_where_no_style_is_allowed(page, trace):
    plain = re.sub(
        r"<style>.*?</style>| (style|class)=\"[^\"]*\"", "", render_html(trace)
    )
    page.set_content(plain)
    lefts = [
        page.get_by_text(text).bounding_box()["x"]
        for text in ("model: Net", "layers: 6 x Block", "0-5: 6 x Block", "linear: L")
    ]
    assert lefts == sorted(set(lefts))


def list_headings(page):
    return page.get_by_role("columnheader").all_inner_texts()


def width_of(page, name):
    heading = page.get_by_role("columnheader", name=name)
    return heading.bounding_box()["width"]


def test_columns_are_chosen_and_kept(serve, trace, expect):
    page = serve(trace)
    assert "marks" in list_headings(page)
    page.get_by_role("button", name="Columns").press("Enter")
    page.get_by_role("checkbox", name="marks").press("Space")
    expect(page.get_by_role("columnheader", name="marks")).to_have_count(0)
    page.reload()
    page.wait_for_function("() => window.ready")
    assert "marks" not in list_headings(page)
    page.get_by_role("button", name="Columns: 10 of 11").click()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("columnheader", name="marks")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("checkbox", name="marks")).to_be_hidden()


def test_a_name_cannot_be_hidden(serve, trace, expect):
    page = serve(trace)
    page.get_by_role("button", name="Columns").click()
    for name in ("name", "class"):
        expect(page.get_by_role("checkbox", name=name)).to_be_disabled()


def test_a_column_is_resized_by_its_edge_and_kept(serve, trace):
    page = serve(trace)
    before = width_of(page, "class")
    box = page.get_by_role("columnheader", name="class").bounding_box()
    edge = box["x"] + box["width"] - 3
    page.mouse.move(edge, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(edge + 20, box["y"] + 10)
    page.mouse.move(edge + 60, box["y"] + 10)
    page.mouse.up()
    # The pointer is where it was on the edge, within the edge.
    assert abs(width_of(page, "class") - before - 60) < 7
    heading = page.get_by_role("columnheader", name="class")
    assert heading.get_attribute("aria-sort") == "none"
    page.reload()
    page.wait_for_function("() => window.ready")
    assert abs(width_of(page, "class") - before - 60) < 7


@pytest.mark.parametrize("fault", ["throw new Error('forbidden')", "return 'not JSON'"])
def test_without_a_storage_the_columns_are_chosen_all_the_same(
    serve, page, trace, expect, fault
):
    page.add_init_script(
        f"Object.defineProperty(window, 'localStorage', {{ get() {{ {fault}; }} }})"
    )
    serve(trace)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="marks").click()
    expect(page.get_by_role("columnheader", name="marks")).to_have_count(0)
    before = width_of(page, "bytes")
    heading = page.get_by_role("columnheader", name="bytes").get_by_role("button")
    heading.press("ArrowRight")
    assert abs(width_of(page, "bytes") - before - 16) < 1


def test_columns_out_of_sight_are_shown_and_a_key_away(serve, page, trace, expect):
    page.set_viewport_size({"width": 500, "height": 700})
    serve(trace)
    button = page.get_by_role("button", name=re.compile("to the (right|left)"))
    expect(button).to_contain_text("more to the right")
    while (said := button.text_content()) != "back to the left":
        button.press("Enter")
        expect(button).not_to_have_text(said)
    expect(page.get_by_role("columnheader", name="marks")).to_be_in_viewport()
    names = [page.get_by_role("columnheader", name=n) for n in ("name", "class")]
    for name in names:
        expect(name).to_be_in_viewport()
    page.set_viewport_size({"width": 1440, "height": 700})
    expect(button).to_be_hidden()


def test_operators_open_at_the_forward_phase(serve, trace, expect):
    page = serve(trace)
    page.get_by_role("tab", name="Operators").click()
    pane = page.get_by_role("tabpanel", name="Operators")
    first = next(i for i, call in enumerate(trace.ops) if call.phase == "forward")
    active = pane.locator("[data-active=true]")
    expect(active.get_by_role("gridcell").first).to_have_text(str(first))
    expect(active).to_be_in_viewport()
    pane.get_by_role("button", name="init").press("Enter")
    expect(active.get_by_role("gridcell").first).to_have_text("0")


def test_every_word_of_the_header_and_of_the_headings_is_explained(serve, trace):
    page = serve(trace)
    page.get_by_role("tab", name="Operators").click()
    parts = page.locator("header p span").all()
    assert len(parts) == 7
    for part in parts + page.get_by_role("columnheader").all():
        assert part.get_attribute("title")
