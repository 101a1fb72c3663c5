"""The flow's steps: calls of functions, which open into their operators."""

import pytest
import torch
import torch.nn.functional as F
from axe_playwright_python.sync_playwright import Axe

from meta_magic import record
from tests.browser.served import show


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        x, w = torch.zeros(2, 3, 8), torch.zeros(8, 8, requires_grad=True)
        F.linear(x, w).exp().sum().backward()
    return trace


@pytest.fixture
def flow(serve, trace):
    return show(serve(trace), "Flow")


def step(flow, name):
    return flow.get_by_role("treeitem", name=name, exact=True)


def test_a_flow_is_first_what_the_code_says(flow, expect):
    expect(step(flow, "linear")).to_have_attribute("aria-expanded", "false")
    expect(step(flow, "exp")).to_be_visible()
    expect(step(flow, "mm")).to_have_count(0)


def test_a_click_opens_a_function_into_its_operators(flow, expect):
    step(flow, "linear").click()
    expect(step(flow, "linear")).to_have_attribute("aria-expanded", "true")
    for name in ("t", "view", "mm", "_unsafe_view"):
        expect(step(flow, name)).to_be_visible()
    expect(flow.locator(".mm-selected")).to_contain_text("mm")  # which costs most
    assert flow.page.errors == []


def test_keys_open_a_function_and_close_it(flow, expect):
    flow.locator(".mm-flow-graph").focus()
    for _ in range(3):  # to what makes x and w, and to the function
        flow.page.keyboard.press("ArrowDown")
    flow.page.keyboard.press("ArrowRight")
    expect(step(flow, "mm")).to_be_visible()
    flow.page.keyboard.press("ArrowLeft")
    expect(step(flow, "mm")).to_have_count(0)


def test_the_switch_shows_operators_and_stays_from_phase_to_phase(flow, expect):
    switch = flow.get_by_role("group", name="Shown as")
    operators = switch.get_by_role("button", name="operators")
    operators.focus()
    flow.page.keyboard.press("Enter")
    expect(operators).to_have_attribute("aria-pressed", "true")
    expect(step(flow, "mm")).to_be_visible()
    expect(step(flow, "linear")).to_have_count(0)
    for phase in ("backward", "other"):
        flow.get_by_label("Phase").select_option(phase)
    expect(step(flow, "mm")).to_be_visible()
    switch.get_by_role("button", name="functions").click()
    expect(step(flow, "linear")).to_be_visible()
    assert (Axe().run(flow.page).violations_count, flow.page.errors) == (0, [])


def test_an_operator_that_is_chosen_elsewhere_opens_its_function(flow, expect):
    operators = show(flow.page, "Operators")
    operators.get_by_role("row").filter(has_text="aten._unsafe_view").click()
    show(flow.page, "Flow")
    expect(step(flow, "linear")).to_have_attribute("aria-expanded", "true")
    expect(flow.locator(".mm-selected")).to_contain_text("_unsafe_view")


def test_a_function_is_found_by_its_name_and_by_that_of_an_operator(flow, expect):
    search = flow.get_by_role("searchbox")
    for query, name in (("linear", "linear"), ("unsafe", "_unsafe_view")):
        search.fill(query)
        search.press("Enter")
        expect(flow.locator(".mm-selected")).to_have_count(1)
        expect(flow.locator(".mm-flow-status")).to_have_text("1 of 1 found")
        expect(step(flow, name)).to_be_visible()
