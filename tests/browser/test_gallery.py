"""Whatever model is shown: its report can be read, and all of it be reached.

``check_report.js`` looks at what is drawn, and says what a person could not read.
"""

import pytest
import torch
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    ResNetConfig,
    ResNetForImageClassification,
)

import meta_magic as mm
from tests.browser.gallery import (
    VIEWS,
    make_page,
    open_page,
    open_shell,
    record_cells,
    set_scheme,
    show_view,
)
from tests.browser.gallery_models import CELLS, N_PARAMETERS
from tests.browser.served import list_unreadable

WIDTHS = (350, 700, 1000, 1440)
"""In pixels; the first is a window of 700 at 200 %."""

LOOKS = [
    pytest.param(name, width, marks=pytest.mark.sweep if (i + j) % len(WIDTHS) else ())
    for i, name in enumerate(CELLS)
    for j, width in enumerate(WIDTHS)
]
"""Each model at one width; at the others in ``pytest -m sweep tests/browser``."""

FAULTS = {
    "overlap": ".mm-header p { margin-bottom: -24px }",
    "cut": ".mm-flow-steps { width: 20px; overflow: hidden; white-space: nowrap }",
    "contrast": ".mm-tabs button { color: #999 }",
    "wider than the page": ".mm-header { width: 2000px }",
    "no focus to see": ".mm-live :focus-visible { outline: none !important }",
    "sticks out": ".mm-flow .mm-node text { font-size: 16px }",
    "on a wire": ".mm-flow .mm-wire text { stroke: none; translate: 0 14px }",
}
"""Styles that spoil the report, by what is found then."""


@pytest.fixture(scope="module")
def traces():
    with open_shell() as shell:
        return record_cells(shell, CELLS)


@pytest.fixture(scope="module")
def pages(traces):
    return {name: make_page(trace) for name, trace in traces.items()}


def check(page, function="check_report"):
    """Return what a person could not read in the view that is shown."""
    page.keyboard.press("Tab")  # from here on the browser shows the focus
    found = list_unreadable(page, function)
    return [f"{what}: {text[:60]!r} in {where}" for what, text, where in found]


def look_through(page, view):
    """Return what a person could not read in a view, with whatever colours."""
    set_scheme(page, "light")
    show_view(page, view)
    found = check(page)
    for scheme in ("dark", "file-light", "file-dark"):
        set_scheme(page, scheme)
        found += [f"{scheme}: {fault}" for fault in check(page, "check_colors")]
    return found


@pytest.mark.parametrize("name", CELLS)
def test_the_models_are_those_of_the_papers(traces, name):
    n_parameters = sum(node.n_parameters for node in traces[name].modules)
    assert n_parameters == N_PARAMETERS[name]


@pytest.mark.parametrize(("name", "width"), LOOKS)
def test_a_person_can_read_the_report(browser, pages, name, width):
    page = open_page(browser, pages[name], width, "light")
    found = {view: look_through(page, view) for view in VIEWS}
    page.close()
    assert {view: faults for view, faults in found.items() if faults} == {}


@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_a_person_can_read_what_is_selected(browser, pages, width):
    page = open_page(browser, pages["u-net"], width, "light")
    page.get_by_role("row").filter(has_text="down2").click()
    found = {view: look_through(page, view) for view in VIEWS}
    page.close()
    assert {view: faults for view, faults in found.items() if faults} == {}


@pytest.mark.parametrize("direction", ["down", "across"])
@pytest.mark.parametrize("measure", ["flops", "made", "held"])
def test_a_person_can_read_a_flow_with_colours(browser, pages, measure, direction):
    page = open_page(browser, pages["resnet-50"], 1440, "light")
    show_view(page, "Flow")
    page.get_by_label("More", exact=True).click()
    page.get_by_label("Direction", exact=True).select_option(direction)
    page.get_by_label("Colours by").select_option(measure)
    found = look_through(page, "Flow")
    page.close()
    assert found == []


def resnet():
    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def detr():
    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        backbone=None,
        use_pretrained_backbone=False,
    )
    return DetrForObjectDetection(config).eval()


@pytest.mark.parametrize("width", [700, 1100])
@pytest.mark.parametrize(
    ("build", "block"),
    [(resnet, "ResNetBottleNeckLayer"), (detr, "DetrEncoderLayer")],
)
def test_a_block_is_open_at_first(browser, expect, build, block, width):
    with mm.record() as trace:
        build()(torch.zeros(1, 3, 224, 224))
    page = open_page(browser, make_page(trace), width, "light")
    show_view(page, "Flow")
    expect(
        page.get_by_role("treeitem", name=block, expanded=True).first
    ).to_be_visible()
    page.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(browser, pages, fault):
    page = open_page(browser, pages["u-net"], 700, "light")
    page.add_style_tag(content=FAULTS[fault])
    show_view(page, "Flow")
    found = check(page)
    page.close()
    assert any(words.startswith(fault) for words in found)


def test_a_control_without_a_name_is_found(browser, pages):
    page = open_page(browser, pages["u-net"], 700, "light")
    page.get_by_role("tab", name="Flow").evaluate("(tab) => { tab.textContent = '' }")
    found = check(page)
    page.close()
    assert any(words.startswith("no name") for words in found)


def test_text_shortened_without_a_way_to_it_is_found(browser, pages):
    page = open_page(browser, pages["u-net"], 700, "light")
    page.locator("header p").evaluate("(p) => { p.textContent = '31.0 M para…' }")
    found = check(page)
    page.close()
    assert any(words.startswith("shortened") for words in found)


def test_the_flow_keeps_the_direction_that_was_chosen(browser, pages, expect):
    page = open_page(browser, pages["lstm"], 1440, "light")
    show_view(page, "Flow")
    chosen = page.get_by_label("Direction", exact=True)
    page.get_by_label("More", exact=True).click()
    chosen.select_option("across")
    page.get_by_role("button", name="operators").click()
    expect(chosen).to_have_value("across")
    page.get_by_label("More", exact=True).click()
    chosen.select_option("down")
    page.get_by_label("Phase").select_option(label="backward")
    expect(chosen).to_have_value("down")
    page.close()
