"""What a person learns of a model before any click: what it is, and is set to."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.browser.served import show

ARROW = "\N{RIGHTWARDS ARROW}"
RNN = f"LSTM 8 {ARROW} 4, num_layers=2, bidirectional, dropout=0.5"


@dataclass
class Config:
    dim: int = 8
    n_kv_heads: int = 2


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_groups = 4
        self.key = nn.Linear(config.dim, 2)
        self.out = nn.Linear(2, config.dim, bias=False)

    def forward(self, x):
        return self.out(self.key(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.norm = Attention(config), nn.LayerNorm(config.dim)

    def forward(self, x):
        return x + self.attention(self.norm(x))


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(3))
        self.rnn = nn.LSTM(8, 4, 2, dropout=0.5, bidirectional=True)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.rnn(x)[0]


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = Net(Config())
        model(torch.zeros(3, 8))
    assert model.rnn.weight_ih_l0.is_meta
    return trace


@pytest.mark.parametrize(
    "settings", ["Net n_kv_heads=2, dim=8", "Attention n_groups=4", RNN]
)
def test_modules_show_what_they_are_set_to(serve, trace, expect, settings):
    page = serve(trace, settings={})
    cell = page.get_by_role("gridcell", name=settings, exact=True)
    expect(cell).to_be_in_viewport()
    expect(cell).to_have_attribute("title", settings)


@pytest.mark.parametrize("width", [480, 700, 1000])
def test_what_people_look_for_is_in_sight(serve, page, trace, expect, width):
    page.set_viewport_size({"width": width, "height": 700})
    serve(trace, settings={})
    row = page.get_by_role("row").filter(has_text="rnn")
    for i, text in enumerate(["rnn", RNN, "(3, 8) f32, (4, 4) f32, (4, 4) f32", "896"]):
        expect(row.get_by_role("gridcell").nth(i)).to_have_text(text)
    time = page.get_by_role("columnheader", name="time")
    expect(time).to_be_in_viewport(ratio=1)
    row.click()
    table, details = (
        one.bounding_box()
        for one in (page.get_by_role("treegrid"), page.locator(".mm-details"))
    )
    is_over = details["x"] < table["x"] + table["width"]
    assert is_over == (width < 800)


@pytest.mark.parametrize("width", [700, 1000, 1440])
@pytest.mark.parametrize("view", ["Modules", "Operators"])
def test_no_column_is_cut(serve, page, trace, view, width):
    page.set_viewport_size({"width": width, "height": 700})
    pane = show(serve(trace, settings={}), view)
    grid = pane.locator(".mm-grid").bounding_box()
    end = grid["x"] + grid["width"]
    headings = [one.bounding_box() for one in pane.get_by_role("columnheader").all()]
    assert len(headings) > 4
    for heading in headings:
        is_in_sight = heading["x"] + heading["width"] <= end + 1
        assert is_in_sight or heading["x"] >= end - 4


def test_boxes_and_frames_of_the_flow_show_what_modules_are_set_to(
    serve, trace, expect
):
    flow = show(serve(trace, settings={}), "Flow")
    frame = flow.get_by_role("treeitem", name="Net")
    expect(frame.get_by_text("n_kv_heads=2, dim=8", exact=True)).to_be_visible()
    box = flow.get_by_role("treeitem", name="out: Linear")
    expect(box.locator("text", has_text=f"Linear 2 {ARROW} 8")).to_be_visible()
    assert f"2 {ARROW} 8, bias=False" in box.locator("title").text_content()


def test_a_list_that_was_not_called_says_what_it_holds(serve, trace, expect):
    page = serve(trace, settings={})
    page.get_by_role("gridcell", name="3 x Block").first.click()
    details = page.get_by_role("group", name="Details")
    expect(details.get_by_text("not itself, it holds 3 x Block")).to_be_visible()


def test_a_module_has_one_colour_in_all_charts(serve, trace):
    charts = show(serve(trace, settings={}), "Charts")
    boxes = charts.locator("svg g[data-module]:has(text)").all()
    seen = {(b.get_attribute("data-module"), b.get_attribute("class")) for b in boxes}
    assert len(boxes) > len(seen) > 1
    assert len({module for module, _ in seen}) == len(seen)


# Sizes by name in a saved report, and the switch that shows numbers


def test_names_are_switched_off_and_one_leads_to_its_line(tmp_path, page, expect):
    with record(dims="rows,width") as trace:
        rows, width = 4, 8
        model = nn.Sequential(nn.Linear(width, 3 * width), nn.ReLU())
        model(torch.ones(rows, width))
    trace.to_html(tmp_path / "names.html")
    page.goto(f"file://{tmp_path / 'names.html'}")
    page.get_by_role("tab", name="Operators").click()
    sizes = page.locator(".mm-view-operators .mm-dim")
    named, plain = sizes.filter(has_text="3*width"), sizes.filter(has_text="24")
    expect(named.first).to_have_attribute("title", "24")
    expect(plain).to_have_count(0)
    page.get_by_role("button", name="Names").click()
    expect(plain.first).to_be_visible()
    expect(named).to_have_count(0)
    page.get_by_role("button", name="Names").click()
    named.last.click()
    details = page.locator(".mm-details")
    expect(details).to_contain_text("3*width")
    details.get_by_role("button", name="#8 detach").first.click()
    page.get_by_role("tab", name="Source").click()
    chosen = page.locator(".mm-view-source .mm-selected")
    expect(chosen.first).to_contain_text("torch.ones(rows, width)")
    assert not page.errors
