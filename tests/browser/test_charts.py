"""The charts of the report: what is drawn, and how it leads to a module and back."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.browser.served import list_unreadable


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = nn.Sequential()
        model.add_module("wide", nn.Linear(8, 32, bias=False))
        model.add_module("narrow", nn.Linear(32, 4, bias=False))
        model.add_module("last", nn.Linear(4, 4, bias=False))
        model(torch.zeros(3, 8))
    assert model.wide.weight.is_meta
    return trace


@pytest.fixture
def charts(serve, trace):
    page = serve(trace)
    page.get_by_role("tab", name="Charts").click()
    return page.get_by_role("tabpanel", name="Charts")


def show_modules(page):
    page.get_by_role("tab", name="Modules").click()
    return page.get_by_role("tabpanel", name="Modules")


def area(box):
    found = box.locator("rect").bounding_box()
    return found["width"] * found["height"]


@pytest.mark.parametrize("width", [700, 1440])
def test_the_charts_fill_the_width(charts, page, expect, width):
    page.set_viewport_size({"width": width, "height": 900})
    figures = charts.locator("figure")
    expect(figures).to_have_count(4)
    pane = charts.bounding_box()
    for figure in figures.all():
        svg = figure.locator("svg")
        if svg.count():
            expect(svg).to_have_css("width", f"{figure.bounding_box()['width']:g}px")
    last = max(f.bounding_box()["x"] + f.bounding_box()["width"] for f in figures.all())
    assert pane["x"] + pane["width"] - last < 24


def test_areas_are_as_the_parameters(charts):
    boxes = charts.get_by_role("group", name="Parameters by module").get_by_role(
        "button"
    )
    areas = {box.get_attribute("aria-label"): area(box) for box in boxes.all()}
    wide, narrow = areas["wide: Linear, 256"], areas["narrow: Linear, 128"]
    assert wide / narrow == pytest.approx(2, rel=0.1)  # borders take a pixel


def test_a_click_on_a_box_selects_the_module(charts, page, expect):
    tree = charts.get_by_role("group", name="Parameters by module")
    tree.get_by_role("button", name="narrow").click()
    expect(tree.get_by_role("button", name="narrow")).to_have_attribute(
        "aria-pressed", "true"
    )
    selected = show_modules(page).locator(".mm-selected")
    expect(selected).to_contain_text("narrow")


def test_boxes_are_walked_and_chosen_by_keys(charts, page, expect):
    tree = charts.get_by_role("group", name="FLOPs by module")
    tree.focus()
    page.keyboard.press("ArrowRight")
    expect(tree.get_by_role("button", name="wide")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(show_modules(page).locator(".mm-selected")).to_contain_text("narrow")


def test_what_is_selected_elsewhere_is_marked_in_each_chart(charts, page, expect):
    show_modules(page).get_by_role("row").filter(has_text="narrow").click()
    page.get_by_role("tab", name="Charts").click()
    for name in ("Parameters by module", "FLOPs by module"):
        tree = charts.get_by_role("group", name=name)
        marked = tree.locator(".mm-selected")
        expect(marked).to_have_count(1)
        expect(marked).to_have_attribute("data-module", "2")
    curve = charts.get_by_role("slider")
    expect(curve).to_have_attribute(
        "aria-valuetext", "narrow · Linear · (3, 4) f32 · 48 bytes"
    )


def test_the_shapes_are_walked_by_keys_and_lead_to_the_module(charts, page, expect):
    curve = charts.get_by_role("slider")
    text = "wide · Linear · (3, 32) f32 · 384 bytes"
    expect(curve).to_have_attribute("aria-valuetext", text)
    curve.press("End")
    text = "last · Linear · (3, 4) f32 · 48 bytes"
    expect(curve).to_have_attribute("aria-valuetext", text)
    expect(charts.locator(".mm-curve output")).to_have_text(text)
    curve.press("Enter")
    expect(show_modules(page).locator(".mm-selected")).to_contain_text("last")


def test_a_part_of_two_models_has_one_box(serve, expect):
    with record() as shared:
        part = nn.Linear(10, 10, bias=False)
        first = nn.Sequential(part, nn.Linear(10, 1, bias=False))
        second = nn.Sequential(part, nn.Linear(10, 2, bias=False))
    assert first[0] is second[0]
    page = serve(shared)
    page.get_by_role("tab", name="Charts").click()
    boxes = page.get_by_role("group", name="Parameters by module").get_by_role("button")
    expect(boxes.filter(has_text="100")).to_have_count(1)  # of 10 x 10
    expect(page.get_by_text("all modules")).to_have_count(0)


def test_without_parameters_or_calls_there_is_a_line(serve, expect):
    with record() as bare:
        for _ in range(5):
            torch.ones(2, 3)
    page = serve(bare, roots=[])
    page.get_by_role("tab", name="Charts").click()
    expect(page.get_by_role("tabpanel", name="Charts")).to_contain_text("No module")


def test_what_is_pointed_at_is_shown_below_the_title_if_details_take_the_room(
    serve, page
):
    with record() as long:
        model = nn.Sequential()
        model.add_module(
            "a_name_that_takes_half_of_the_room_that_is_there", nn.Linear(8, 4)
        )
        model(torch.zeros(3, 8))
    charts = serve(long)
    page.set_viewport_size({"width": 950, "height": 900})
    charts.get_by_role("row").filter(has_text="a_name").click()
    charts.get_by_role("tab", name="Charts").click()
    assert list_unreadable(page) == []
