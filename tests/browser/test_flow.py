"""The gestures of the flow: colours, folds, directions, what is brought into view."""

import pytest
import torch
from torch import nn

from meta_magic import record

pytestmark = pytest.mark.browser

TIMES = "\N{MULTIPLICATION SIGN}"
SETTINGS = {"depth": 1, "height": 420, "hide": ["parameters"]}


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        pairs = [layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.ReLU())]
        model = nn.Sequential(*pairs, nn.Linear(8, 64))
        model(torch.zeros(3, 8))
    assert model[0].weight.is_meta
    return trace


@pytest.fixture
def flow(serve, trace):
    page = serve(trace, settings=SETTINGS)
    page.get_by_role("tab", name="Flow").click()
    return page.get_by_role("tabpanel", name="Flow")


def find(flow, name):
    return flow.get_by_role("treeitem", name=name)


def find_fill(item):
    read = "group => getComputedStyle(group.querySelector('rect')).fill"
    return item.evaluate(read)


def is_inside(item, view):
    inner, outer = item.bounding_box(), view.bounding_box()
    return all(
        inner[at] >= outer[at] - 1
        and inner[at] + inner[size] <= outer[at] + outer[size] + 1
        for at, size in (("x", "width"), ("y", "height"))
    )


def test_a_repeated_pattern_is_one_box_until_it_is_opened(flow, expect):
    run = find(flow, f"0\N{EN DASH}23: 12 {TIMES} (Linear, ReLU)")
    expect(run).to_have_attribute("aria-expanded", "false")
    run.click()
    expect(find(flow, "0\N{EN DASH}1: Linear, ReLU")).to_be_visible()
    rest = find(flow, f"2\N{EN DASH}23: 11 {TIMES} (Linear, ReLU)")
    expect(rest).to_be_visible()


def test_boxes_are_coloured_by_what_they_take(flow, expect):
    scale = flow.locator(".mm-flow-heat")
    expect(scale).to_be_hidden()
    colours = flow.get_by_label("Colours by")
    assert colours.locator("option").all_inner_texts() == [
        *("no colours", "FLOPs", "bytes of new tensors", "bytes of parameters")
    ]
    colours.select_option("FLOPs")
    # 12 layers of 2 x 3 x 8 x 8 in a run, one of 2 x 3 x 8 x 64.
    expect(find(flow, f"12 {TIMES} (Linear, ReLU)")).to_contain_text("4.6 KFLOPs")
    expect(find(flow, "24: Linear")).to_contain_text("3.1 KFLOPs")
    expect(scale).to_contain_text("4.6 KFLOPs")
    fills = {
        find_fill(find(flow, name))
        for name in (f"12 {TIMES} (Linear, ReLU)", "24: Linear")
    }
    assert len(fills) == 2
    colours.select_option("no colours")
    expect(scale).to_be_hidden()
    expect(flow.locator(".mm-heated")).to_have_count(0)


def test_colours_are_chosen_by_keyboard(flow, expect):
    flow.get_by_label("Colours by").press("ArrowDown")
    expect(flow.locator(".mm-heated").first).to_be_visible()


def test_the_flow_goes_from_left_to_right_where_that_is_chosen(flow):
    def find_middles():
        boxes = [
            find(flow, name).bounding_box()
            for name in (f"12 {TIMES} (Linear, ReLU)", "24: Linear")
        ]
        return [(box["x"] + box["width"] / 2, box["y"]) for box in boxes]

    (left, top), (right, bottom) = find_middles()
    assert abs(left - right) < 5
    assert bottom > top + 20
    flow.get_by_label("Direction").select_option("left to right")
    (left, top), (right, bottom) = find_middles()
    assert right > left + 50
    assert abs(bottom - top) < 20


def test_a_double_click_opens_a_box_and_zooms_to_it(flow, expect):
    run = find(flow, f"12 {TIMES} (Linear, ReLU)")
    graph = flow.locator(".mm-flow-graph")
    run.dblclick()
    expect(run).to_have_attribute("aria-expanded", "true")
    assert is_inside(run, graph)
    whole, view = run.bounding_box(), graph.bounding_box()
    assert max(whole[s] / view[s] for s in ("width", "height")) > 0.85
    # Open, it stays open.
    run.locator(".mm-handle").first.dblclick()
    expect(run).to_have_attribute("aria-expanded", "true")
    # The ground is the whole.
    corner = {"x": 5, "y": view["height"] - 5}
    graph.dblclick(position=corner)
    assert is_inside(find(flow, "model: Sequential"), graph)


def test_the_active_box_is_zoomed_to_by_keyboard(flow, expect):
    graph = flow.locator(".mm-flow-graph")
    last = find(flow, "24: Linear")
    before = last.bounding_box()["width"]
    graph.press("Home")
    while "24: Linear" not in (
        flow.locator(".mm-active").get_attribute("aria-label") or ""
    ):
        graph.press("ArrowDown")
    graph.press("z")
    expect(last).to_have_attribute("aria-expanded", "true")
    assert last.bounding_box()["width"] > before
    graph.press("0")
    assert is_inside(find(flow, "model: Sequential"), graph)


def test_a_box_that_opens_is_seen_whole(flow, expect):
    graph = flow.locator(".mm-flow-graph")
    run = find(flow, f"12 {TIMES} (Linear, ReLU)")
    for _ in range(3):
        flow.get_by_label("Zoom in").click()
    graph.press("Home")
    while "(Linear, ReLU)" not in (
        flow.locator(".mm-active").get_attribute("aria-label") or ""
    ):
        graph.press("ArrowDown")
    graph.press("ArrowRight")
    expect(run).to_have_attribute("aria-expanded", "true")
    assert is_inside(run, graph)
