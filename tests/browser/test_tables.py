"""What the tables say of a model, and the line that stands for a small cell."""

import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from meta_magic.view.html import render_html

pytestmark = pytest.mark.browser


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
    page = serve(trace, settings={"depth": 1, "height": 420, "hide": []})
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


def test_flops_are_told_in_numbers_and_share(serve, trace, expect):
    page = serve(trace)
    row = page.get_by_role("row").filter(has_text="head")
    expect(row).to_contain_text("768 FLOPs")  # 2 x 3 x 8 x 16
    expect(row).to_contain_text("25.0%")  # beside six layers of 2 x 3 x 8 x 8


@pytest.mark.parametrize("column", ["name", "class", "bytes", "FLOPs", "share"])
def test_a_click_on_any_column_sorts_by_it(serve, trace, expect, column):
    page = serve(trace)
    header = page.get_by_role("columnheader", name=column)
    header.click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    rows = page.get_by_role("treegrid").get_by_role("row")
    ascending = rows.all_inner_texts()[1:]
    header.click()
    expect(header).to_have_attribute("aria-sort", "descending")
    descending = rows.all_inner_texts()[1:]
    assert sorted(ascending) == sorted(descending)
    assert ascending != descending


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


def test_a_few_operators_of_a_module_are_a_whole_report(serve, expect):
    with record() as trace:
        model = nn.Flatten()
        model(torch.ones(2, 3))
    page = serve(trace, roots=[])
    expect(page.get_by_role("tab", name="Modules")).to_be_visible()


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
