"""Time and memory by operator: on the device that is chosen, in all views."""

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from tests.browser.served import list_unreadable, show

SAID = (
    "estimated from data sheets: good for totals and shares, "
    "of single operators for their rank"
)


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = nn.Sequential()
        model.add_module("wide", nn.Linear(512, 512, bias=False))
        model.add_module("gate", nn.ReLU())
        model.add_module("narrow", nn.Linear(512, 64, bias=False))
        model(torch.ones(512, 512))
    assert model.wide.weight.is_meta
    return trace


def device_of(view):
    return view.get_by_label("Times on")


def share_of(trace, module, device):
    """Return a module's share of the time of all, as the tables write it."""
    table = trace.cost.roofline(device).to_pandas()
    times = table[table["phase"] != "init"].groupby("module")["seconds"].sum()
    return f"{times[f'model.{module}'] / times.sum():.1%}"


def test_modules_have_their_share_of_the_time(serve, trace, expect):
    modules = show(serve(trace), "Modules")
    expect(device_of(modules)).to_have_value("NVIDIA H100 SXM")
    for name in ("wide", "gate", "narrow"):
        row = modules.get_by_role("row").filter(has_text=name)
        share = share_of(trace, name, "h100-sxm")
        cell = row.get_by_role("gridcell").filter(has_text=share).last
        expect(cell).to_have_text(share)
    # 2 x 512 x 512 x 512 FLOPs at 66.9 a picosecond.
    cell = modules.get_by_role("row").filter(has_text="wide").get_by_title("about")
    expect(cell).to_have_attribute("title", "about 4.01 µs on NVIDIA H100 SXM, " + SAID)


def test_a_device_that_is_chosen_in_a_view_is_chosen_in_all(serve, trace, expect):
    page = serve(trace)
    roofline = show(page, "Charts")
    device_of(roofline).select_option("NVIDIA T4")
    modules = show(page, "Modules")
    expect(device_of(modules)).to_have_value("NVIDIA T4")
    share = share_of(trace, "gate", "t4")
    assert share != share_of(trace, "gate", "h100-sxm")
    expect(modules.get_by_role("row").filter(has_text="gate")).to_contain_text(share)
    device_of(modules).select_option("Google TPU v5e")
    expect(modules.get_by_role("row").filter(has_text="gate")).to_contain_text(
        share_of(trace, "gate", "tpu-v5e")
    )
    charts = show(page, "Charts")
    expect(device_of(charts)).to_have_value("Google TPU v5e")
    roofs = charts.locator(".mm-roofline text")
    expect(roofs.filter(has_text="bfloat16 197.0 TFLOPs/s")).to_be_visible()


def choose_columns(operators, *names):
    operators.get_by_role("button", name="Columns").click()
    for name in names:
        operators.get_by_role("checkbox", name=name, exact=True).check()


def test_operators_are_sorted_by_time(serve, trace, expect):
    operators = show(serve(trace), "Operators")
    expect(device_of(operators)).to_be_hidden()
    choose_columns(operators, "time")
    expect(device_of(operators)).to_be_visible()
    operators.get_by_role("columnheader", name="time").click()
    table = trace.cost.roofline().to_pandas()
    table = table[table["phase"] != "init"]
    longest = table["seconds"].idxmax()
    first = operators.get_by_role("row").nth(1)
    expect(first.get_by_role("gridcell").first).to_have_text(str(longest))
    share = table["seconds"][longest] / table["seconds"].sum()
    expect(first).to_contain_text(f"{share:.1%}")
    rank = f"rank 1 of {len(trace.program.signatures)} different calls by time on "
    title = first.get_by_title("rank").get_attribute("title")
    assert title == f"{rank}NVIDIA H100 SXM, {SAID}"


def test_dots_stand_under_the_roofs(serve, trace):
    page = serve(trace)
    charts = show(page, "Charts").locator(".mm-roofline")
    dots = charts.locator("svg").get_by_role("button")
    tops = [dot.locator("circle").get_attribute("cy") for dot in dots.all()]
    path = charts.locator("path.mm-roof").get_attribute("d")
    roof = float(path.split()[-1].split("H")[0])
    assert all(float(top) >= roof - 0.1 for top in tops)
    label = str(dots.first.get_attribute("aria-label"))
    assert label.startswith("mm · float32 · 2 calls · ")
    # The second does 2 x 64 x 512 x 512 FLOPs, and moves 4 x (512 x 512 + 2 x 64 x 512)
    # bytes: 25.6 each, above the ridge at 66.9 / 3.35, as the first.
    assert "0.0% of it bound by memory" in label
    assert label.endswith("66.9 TFLOPs/s")


def test_a_click_on_a_dot_selects_the_call_that_takes_longest(serve, trace, expect):
    page = serve(trace)
    charts = show(page, "Charts").locator(".mm-roofline")
    dot = charts.locator("svg").get_by_role("button", name="mm · ")
    dot.click()
    expect(charts.locator("output")).to_contain_text("mm · float32 · 2 calls")
    expect(dot).to_have_attribute("aria-pressed", "true")
    selected = show(page, "Operators").locator(".mm-selected")
    expect(selected).to_contain_text("aten.mm.default")
    expect(selected).to_contain_text("wide")


def test_dots_are_walked_and_chosen_by_keys(serve, trace, expect):
    page = serve(trace)
    charts = show(page, "Charts").locator(".mm-roofline")
    charts.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(charts.locator("output")).to_contain_text("relu · elementwise · 1 call")
    page.keyboard.press("Enter")
    expect(show(page, "Operators").locator(".mm-selected")).to_contain_text("relu")


@pytest.mark.parametrize("width", [400, 700, 1440])
def test_the_roofline_can_be_read(serve, page, trace, width):
    page.set_viewport_size({"width": width, "height": 900})
    show(serve(trace), "Charts")
    page.keyboard.press("Tab")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert Axe().run(page).violations_count == 0
        assert list_unreadable(page) == []
    assert page.errors == []
