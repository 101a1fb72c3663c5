"""The memory of a report: what is drawn, and how it leads to what made it and back."""

import re

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.browser.served import list_unreadable, show


@pytest.fixture(scope="module")
def trace():
    """Calls of two layers; 16 KiB are alive after the second at most."""
    with record() as trace:
        model = nn.Sequential()
        model.add_module("wide", nn.Linear(8, 256, bias=False))  # 8 KiB
        model.add_module("narrow", nn.Linear(256, 4, bias=False))  # 4 KiB
        y = model(torch.zeros(4, 8))  # 128 bytes; 4 KiB, then 64 bytes
        y.sum()
    assert model.wide.weight.is_meta
    return trace


@pytest.fixture(scope="module")
def placed():
    with record() as trace:
        model = nn.Linear(64, 64, bias=False)  # 16 KiB
        model.to("cuda")
        y = model(torch.zeros(1, 64).cuda())
    assert y.is_meta
    return trace


@pytest.fixture
def memory(serve, trace):
    return show(serve(trace), "Memory")


def find_call(trace, op):
    return next(call for call in trace.ops if call.op == op)


def test_the_peak_is_drawn_with_its_bytes_operator_and_line(memory, trace, expect):
    peak = trace.memory.peak_index
    chart = memory.get_by_role("slider")
    label = chart.locator("text").filter(has_text="peak")
    expect(label).to_have_text(re.compile(rf"^peak 16\.2 KiB: #{peak} sum · line \d+$"))
    value = str(chart.get_attribute("aria-valuetext"))
    assert "16.2 KiB: parameters 12.0 KiB, saved for backward 4.0 KiB" in value
    assert value.startswith(f"#{peak} sum · line ")


def test_areas_are_as_high_as_the_bytes(memory, trace):
    # From 12 KiB on there are all parameters: three quarters of the peak's height.
    heights = [
        path.bounding_box()["height"]
        for path in memory.locator("path[class*=mm-kind]").all()
    ]
    live = trace.memory
    whole = max(heights)
    parameters = max(live.live_by_category["parameter"]) / live.peak_nbytes
    shown = memory.locator("path.mm-kind-0").bounding_box()["height"]
    assert shown / whole == pytest.approx(parameters, abs=0.01)


def test_the_keys_lead_through_the_operators(memory, page, trace, expect):
    chart, shown = memory.get_by_role("slider"), memory.locator("output")
    chart.press("Home")
    expect(shown).to_have_text(re.compile(r"^#0 empty"))
    chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    chart.press("End")
    expect(shown).to_have_text(re.compile(rf"^#{len(trace.ops) - 1} sum"))
    chart.press("Enter")
    chosen = show(page, "Operators").locator(".mm-selected")
    expect(chosen).to_contain_text("sum")


def test_the_pointer_shows_the_operator_and_the_bytes_by_category(
    memory, trace, expect
):
    chart = memory.get_by_role("slider")
    box = chart.bounding_box()
    index = find_call(trace, "aten.mm.default").index
    chart.hover(position={"x": (index + 0.5) * box["width"] / len(trace.ops), "y": 90})
    expect(memory.locator("output")).to_have_text(
        re.compile(rf"^#{index} mm.* in wide")
    )
    expect(memory.locator(".mm-groups").first).to_contain_text("parameters  12.0 KiB")


def test_a_click_selects_the_operator_and_shows_what_is_alive_then(
    memory, page, trace, expect
):
    chart = memory.get_by_role("slider")
    box = chart.bounding_box()
    index = find_call(trace, "aten.mm.default").index
    chart.click(position={"x": (index + 0.5) * box["width"] / len(trace.ops), "y": 90})
    nbytes = memory.locator("figcaption").filter(has_text="by module")
    # Both weights, the input, and what the first layer made.
    expect(nbytes).to_have_text(f"Alive after operator {index}, by module: 16.1 KiB")
    expect(show(page, "Operators").locator(".mm-selected")).to_contain_text("mm")


def test_what_is_selected_elsewhere_is_shown(memory, page, trace, expect):
    show(page, "Operators").get_by_role("row").filter(has_text="sum").click()
    show(page, "Memory")
    index = len(trace.ops) - 1
    expect(memory.get_by_role("slider")).to_have_attribute("aria-valuenow", str(index))
    expect(memory).to_contain_text(f"Alive after operator {index}, by line")


def test_the_boxes_select_modules(memory, page, expect):
    boxes = memory.get_by_role("group", name="by module")
    expect(boxes.get_by_role("button")).to_have_count(3)  # one outside of modules
    boxes.get_by_role("button", name="wide: Linear, 12.0 KiB").click()
    expect(show(page, "Modules").locator(".mm-selected")).to_contain_text("wide")


def test_a_line_is_selected_in_the_source(serve, expect, shell_trace):
    page = serve(shell_trace)
    memory = show(page, "Memory")
    memory.get_by_role("button", name=re.compile(r"^line 4: y = x @ x\s")).press(
        "Enter"
    )
    expect(show(page, "Source").locator(".mm-selected")).to_contain_text("y = x @ x")


@pytest.fixture(scope="module")
def shell_trace():
    from tests.browser.gallery import open_shell

    with open_shell() as shell:
        cell = "import torch\nx = torch.ones(8, 8)\ny = x @ x\nz = y + 1\nw = z.relu()"
        shell.run_cell(f"%%meta -q\n{cell}").raise_error()
        return shell.user_ns["_meta"]


def test_each_device_has_its_peak(serve, placed, expect):
    memory = show(serve(placed), "Memory")
    chooser = memory.get_by_label("Device")
    expect(chooser).to_have_value("cuda:0")
    peak = memory.get_by_role("button", name="peak")
    for name, nbytes in (("cuda:0", "16.5 KiB"), ("cpu", "16.0 KiB")):
        chooser.select_option(name)
        expect(peak).to_have_text(f"peak {nbytes}")
    chooser.select_option("all devices")
    expect(peak).to_have_text("peak 32.0 KiB")  # while the weight is moved


def test_a_failed_cell_shows_what_was_alive(serve, expect):
    with pytest.raises(RuntimeError), record() as failed:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2))
        model(torch.ones(5, 2))
    memory = show(serve(failed), "Memory")
    last = len(failed.ops) - 1
    expect(memory.get_by_role("slider")).to_have_attribute("aria-valuenow", str(last))
    expect(memory.get_by_role("button", name="peak")).to_be_visible()


@pytest.mark.parametrize("width", [350, 700, 1440])
def test_a_person_can_read_it(memory, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.keyboard.press("Tab")
    assert list_unreadable(page) == []
