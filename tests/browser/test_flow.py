"""The gestures of the flow: colours, folds, directions, what is brought into view."""

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

from meta_magic import record

TIMES = "\N{MULTIPLICATION SIGN}"
SETTINGS = {"depth": 1, "height": 380}


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
        *("by kind", "FLOPs", "time", "bytes of new tensors", "memory kept"),
        *("bytes of parameters", "no colours"),
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


def test_boxes_have_the_hue_of_their_kind(flow, expect):
    legend = flow.get_by_role("group", name="Legend")
    chips = legend.get_by_role("button")
    expect(chips).to_have_text(["input, output", "linear"])
    linear = find(flow, "24: Linear")
    expect(linear).to_have_class(re.compile("mm-family-linear"))
    flow.get_by_label("Colours by").select_option("no colours")
    expect(linear).not_to_have_class(re.compile("mm-family"))
    expect(legend).to_be_hidden()


def test_the_legend_has_the_kinds_that_are_seen(flow, expect):
    chips = flow.get_by_role("group", name="Legend").get_by_role("button")
    expect(chips).to_have_text(["input, output", "linear"])
    find(flow, f"12 {TIMES} (Linear, ReLU)").click()
    find(flow, "0\N{EN DASH}1: Linear, ReLU").click()
    expect(chips).to_have_text(["input, output", "linear", "activation"])


def test_the_legend_filters(flow, expect):
    run, last = find(flow, f"12 {TIMES} (Linear, ReLU)"), find(flow, "24: Linear")
    turn = find(flow, "0\N{EN DASH}1: Linear, ReLU")
    run.click()
    turn.click()
    flow.get_by_role("button", name="Fit all").click()
    chip = flow.get_by_role("button", name="activation")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(last).to_have_class(re.compile("mm-off"))
    expect(turn).not_to_have_class(re.compile("mm-off"))  # it holds some
    chip.click()
    expect(flow.locator(".mm-off")).to_have_count(0)


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
    flow.get_by_label("More", exact=True).click()
    flow.get_by_label("Direction", exact=True).select_option("left to right")
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


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 8)
        widths = [8, *range(9, 129), 8]
        self.two = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))

    def forward(self, x):
        return x + self.two(self.one(x).relu_())


def test_a_run_shows_one_block_until_it_is_clicked(serve, expect):
    with record() as trace:
        model = nn.Sequential(*(Layer() for _ in range(12)))
        model(torch.zeros(3, 8))
    page = serve(trace, settings={})
    page.get_by_role("tab", name="Flow").click()
    flow = page.get_by_role("tabpanel", name="Flow")
    run = find(flow, f"0\N{EN DASH}11: 12 {TIMES} Layer")
    expect(run).to_have_attribute("aria-expanded", "true")
    one = find(flow, "one: Linear")
    expect(one).to_have_count(1)
    expect(find(flow, f"11 {TIMES} Layer")).to_have_count(0)
    flow.get_by_role("button", name="operators").click()  # it stays as it is
    expect(find(flow, f"11 {TIMES} Layer")).to_have_count(0)
    one.click()
    flow.get_by_role("tree").press("ArrowLeft")
    flow.get_by_role("tree").press("ArrowLeft")  # to the run, and closes it
    flow.get_by_role("tree").press("ArrowLeft")
    expect(run).to_have_attribute("aria-expanded", "false")
    run.click()
    expect(find(flow, f"11 {TIMES} Layer")).to_be_visible()
    assert page.errors == []


def test_writes_in_place_are_marked_where_that_is_chosen(serve):
    with record() as trace:
        Layer()(torch.zeros(3, 8))
    page = serve(trace, settings={"depth": 1})
    page.get_by_role("tab", name="Flow").click()
    flow = page.get_by_role("tabpanel", name="Flow")
    read = "group => getComputedStyle(group.querySelector('rect')).stroke"
    write = flow.locator(".mm-node.mm-write").first
    before = write.evaluate(read)
    flow.get_by_label("More", exact=True).click()
    flow.get_by_label("writes in place").check()
    assert write.evaluate(read) != before


class Block(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 3, padding=1)

    def forward(self, *xs):
        return self.conv(torch.cat(xs, 1)).relu()


class Nested(nn.Module):
    """Blocks of which the last reads the first, too, the last but one the second."""

    def __init__(self, n_levels):
        super().__init__()
        self.down = nn.ModuleDict({f"d{i}": Block(4, 4) for i in range(n_levels)})
        self.up = nn.ModuleDict({f"u{i}": Block(8, 4) for i in range(n_levels)})

    def forward(self, x):
        skips = []
        for block in self.down.values():
            x = block(x)
            skips.append(x)
        for block in self.up.values():
            x = block(x, skips.pop())
        return x


@pytest.fixture
def open_nested(serve):
    def open_flow(n_levels, **settings):
        with record() as trace:
            Nested(n_levels)(torch.zeros(1, 4, 8, 8))
        page = serve(trace, settings=settings)
        page.get_by_role("tab", name="Flow").click()
        return page.get_by_role("tabpanel", name="Flow")

    return open_flow


def test_skips_that_nest_are_drawn_as_a_u(open_nested):
    flow = open_nested(4, height=560)
    downs, ups = (
        [find(flow, f"{name}.{name[0]}{i}: Block").bounding_box() for i in range(4)]
        for name in ("down", "up")
    )
    tops = [box["y"] for box in downs]
    assert tops == sorted(tops)
    tops = [box["y"] for box in ups]
    assert tops == sorted(tops, reverse=True)
    right = max(down["x"] + down["width"] for down in downs)
    assert all(up["x"] > right for up in ups[1:])  # the first has no skip that is long


def test_what_opens_in_the_half_that_leads_up_leads_up(open_nested, expect):
    flow = open_nested(4)
    block = find(flow, "up.u1: Block")
    block.click()
    expect(block).to_have_attribute("aria-expanded", "true")
    cat = flow.get_by_role("treeitem", name="cat", exact=True)
    conv = flow.get_by_role("treeitem", name="conv: Conv2d")
    assert cat.bounding_box()["y"] > conv.last.bounding_box()["y"]
    assert flow.page.errors == []


def test_a_view_grows_to_what_it_opens_on_unless_its_height_was_chosen(open_nested):
    graph = open_nested(5).locator(".mm-flow-graph")
    assert is_inside(graph.get_by_role("treeitem", name="Nested"), graph)
    flow = open_nested(5, height=300)
    assert flow.bounding_box()["height"] == pytest.approx(300, abs=2)


def test_what_is_larger_than_its_view_is_shown(open_nested, expect):
    flow = open_nested(5, height=300)
    status = flow.locator(".mm-flow-status")
    expect(status).to_contain_text("drag it, or fit")
    flow.get_by_label("Fit all into view").click()
    expect(status).not_to_contain_text("larger")
    expect(open_nested(1).locator(".mm-flow-status")).not_to_contain_text("larger")


def test_steps_between_modules_open_with_a_click(serve, expect):
    class Attention(nn.Sequential):
        def forward(self, x):
            heads = self[0](x).view(3, 2, 4).transpose(0, 1)
            return x + self[1](heads.transpose(0, 1).flatten(1))

    with record() as trace:
        Attention(nn.Linear(8, 8), nn.Linear(8, 8))(torch.zeros(3, 8))
    page = serve(trace, settings=SETTINGS)
    page.get_by_role("tab", name="Flow").click()
    flow = page.get_by_role("tabpanel", name="Flow")
    steps = find(flow, "view, transpose, flatten")
    expect(steps).to_have_attribute("aria-expanded", "false")
    expect(flow.get_by_role("treeitem", name="add", exact=True)).to_be_visible()
    steps.click()
    expect(flow.get_by_role("treeitem", name="flatten", exact=True)).to_be_visible()
    assert page.errors == []


def test_a_key_leaves_a_flow_that_fits_where_it_is(flow):
    graph = flow.get_by_role("tree")
    for _ in range(3):
        flow.get_by_label("Open a level").click()
    graph.press("0")
    view = graph.get_attribute("viewBox")
    assert float(view.split()[3]) > 1.1 * graph.bounding_box()["height"]
    for key in ("Home", "ArrowDown", "End"):
        graph.press(key)
        assert graph.get_attribute("aria-activedescendant")
        assert graph.get_attribute("viewBox") == view
