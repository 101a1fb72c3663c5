"""The details panel: what is selected anywhere, links, keys, and a narrow page."""

import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8, eps=1e-6)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu_()
        return self.norm(x)


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = Net()
        model(torch.zeros(3, 8)).sum().backward()
    assert model.norm.weight.is_meta
    return trace


@pytest.fixture
def details(serve, trace):
    """The panel of an open report; the page is ``details.page``."""
    return serve(trace).get_by_role("group", name="Details")


def find_title(details, text):
    return details.locator(".mm-title", has_text=re.compile(f"^{text}$"))


def pick_row(page, text):
    """Click a row until it is selected: a table that was just opened may scroll."""
    row = page.get_by_role("row").filter(has_text=text).first
    for _ in range(5):
        row.click()
        if row.get_attribute("aria-selected") == "true":
            return
    pytest.fail(f"the row of {text} cannot be selected")


def test_nothing_selected_leaves_the_whole_width(details, expect):
    expect(details).to_be_hidden()
    expect(details.page.get_by_role("button", name="Details")).to_be_disabled()


def test_a_module_has_its_settings_and_its_page_in_torchs_documentation(
    details, expect
):
    pick_row(details.page, "LayerNorm")
    expect(find_title(details, "norm")).to_be_visible()
    for name, value in [("eps", "1e-06"), ("bias", "True")]:
        term = details.get_by_role("term").filter(has_text=name)
        expect(term.locator("+ dd").first).to_contain_text(value)
    expect(details.get_by_role("link")).to_have_attribute(
        "href", "https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html"
    )


def test_an_operator_has_its_arguments_by_name(details, expect):
    details.page.get_by_role("tab", name="Operators").click()
    pick_row(details.page, "aten.native_layer_norm.default")
    for name in ("input", "weight", "bias", "normalized_shape", "eps"):
        expect(
            details.get_by_role("term").filter(has_text=re.compile(f"^{name}$"))
        ).to_be_visible()


def test_links_lead_from_an_operator_to_a_tensor_to_its_maker(details, expect):
    details.page.get_by_role("tab", name="Operators").click()
    pick_row(details.page, "aten.native_layer_norm.default")
    details.get_by_role("button", name="(3, 8) f32").first.click()
    expect(details).to_contain_text("tensor")
    made = details.get_by_role("term").filter(has_text="made by").locator("+ dd")
    made.get_by_role("button").click()
    expect(find_title(details, "addmm")).to_be_visible()
    marked = details.page.locator(".mm-view-operators .mm-selected")
    expect(marked).to_contain_text("aten.addmm.default")
    details.get_by_role("button", name="Back", exact=True).click()
    details.get_by_role("button", name="Back", exact=True).click()
    expect(find_title(details, "native_layer_norm")).to_be_visible()


def test_a_parameter_shows_its_first_values(details, expect):
    pick_row(details.page, "LayerNorm")
    details.get_by_role("button", name="(8,) f32").first.click()
    expect(details).to_contain_text("norm.weight")
    expect(details).to_contain_text("trainable")
    first = details.get_by_role("term").filter(has_text="first values").locator("+ dd")
    expect(first).to_contain_text("fill_(value=1.0)")


def test_a_gradient_leads_to_the_operator_that_it_is_of(details, expect):
    details.page.get_by_role("tab", name="Operators").click()
    pick_row(details.page, "aten.native_layer_norm_backward.default")
    term = details.get_by_role("term").filter(has_text="gradient of")
    term.locator("+ dd").get_by_role("button").click()
    expect(find_title(details, "native_layer_norm")).to_be_visible()
    expect(details.get_by_role("term").filter(has_text="gradient by")).to_be_visible()


def test_a_wire_of_the_flow_is_its_tensor(details, expect):
    page = details.page
    page.get_by_role("tab", name="Flow").click()
    wire = page.locator(".mm-wire").first
    wire.dispatch_event("click")
    expect(details).to_contain_text("(3, 8) float32")
    expect(wire).to_have_class(re.compile("mm-selected"))


def test_it_is_closed_and_opened_by_keyboard_and_that_is_remembered(details, expect):
    page = details.page
    pick_row(page, "LayerNorm")
    toggle = page.get_by_role("button", name="Details", exact=True)
    expect(toggle).to_have_attribute("aria-expanded", "true")
    details.get_by_role("link").focus()
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    expect(toggle).to_be_focused()
    page.reload()
    pick_row(page, "LayerNorm")
    expect(details).to_be_hidden()
    toggle.focus()
    page.keyboard.press("Enter")
    expect(details).to_be_visible()


def test_a_link_keeps_the_keyboard_in_the_panel(details, expect):
    pick_row(details.page, "LayerNorm")
    details.get_by_role("button", name="(8,) f32").first.press("Enter")
    expect(details).to_contain_text("norm.weight")
    assert details.evaluate("panel => panel.contains(document.activeElement)")


@pytest.mark.parametrize(("width", "is_beside"), [(1440, True), (700, False)])
def test_it_is_beside_the_view_or_over_it(details, expect, width, is_beside):
    page = details.page
    page.set_viewport_size({"width": width, "height": 900})
    pick_row(page, "LayerNorm")
    expect(details).to_be_visible()
    view = page.locator(".mm-views").bounding_box()
    box = details.bounding_box()
    if is_beside:
        assert box["x"] >= view["x"] + view["width"] - 1
    else:
        assert abs(box["x"] + box["width"] - view["x"] - view["width"]) < 2
        assert box["width"] < 0.6 * view["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_saved_report_offers_no_values(tmp_path, page, trace, expect):
    trace.to_html(tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    pick_row(page, "LayerNorm")
    details = page.get_by_role("group", name="Details")
    details.get_by_role("button", name="(8,) f32").first.click()
    expect(details).to_contain_text("norm.weight")
    expect(details.get_by_role("button", name="Compute values")).to_have_count(0)


def test_values_are_asked_for_and_drawn(details, expect):
    page = details.page
    pick_row(page, "LayerNorm")
    details.get_by_role("button", name="(8,) f32").first.click()
    details.get_by_role("button", name="Compute values").click()
    asked = page.evaluate("() => sent.findLast(({ kind }) => kind === 'values')")
    assert set(asked) == {"kind", "id", "op", "slot"}
    page.evaluate(
        """id => listeners['msg:custom']({ kind: 'values', id, first: '1, 1',
        facts: [['mean', '1']], bins: { counts: [2, 0, 6], low: '0', high: '2' } })""",
        asked["id"],
    )
    expect(details.get_by_role("img", name="Histogram from 0 to 2")).to_be_visible()
    expect(details.get_by_role("status")).to_contain_text("mean")


def test_an_error_of_the_kernel_is_said(details, expect):
    page = details.page
    pick_row(page, "LayerNorm")
    details.get_by_role("button", name="(8,) f32").first.click()
    details.get_by_role("button", name="Compute values").click()
    page.evaluate(
        "() => listeners['msg:custom']({ kind: 'values', id: 0, error: 'no room' })"
    )
    expect(details.get_by_role("status")).to_have_text("no room")


def test_the_panel_can_be_used_by_everyone(details):
    pick_row(details.page, "LayerNorm")
    found = Axe().run(details.page)
    assert found.response["violations"] == [], found.generate_report()


def test_parameters_are_rows_that_open_by_key(details, expect):
    page = details.page
    grid = page.get_by_role("treegrid")
    pick_row(page, "LayerNorm")
    grid.press("ArrowRight")
    row = page.get_by_role("row").filter(has_text="weight")
    expect(row).to_contain_text("(8,) f32")
    grid.press("ArrowDown")
    grid.press("Enter")
    expect(find_title(details, "norm.weight")).to_be_visible()
    expect(row).to_have_attribute("aria-selected", "true")


def test_a_parameter_chosen_elsewhere_is_opened_in_modules(details, expect):
    page = details.page
    page.get_by_role("tab", name="Operators").click()
    pick_row(page, "aten.native_layer_norm.default")
    details.get_by_role("button", name="weight", exact=True).click()
    page.get_by_role("tab", name="Modules").click()
    row = page.get_by_role("treegrid").get_by_role("row").filter(has_text="weight")
    expect(row).to_have_attribute("aria-selected", "true")
