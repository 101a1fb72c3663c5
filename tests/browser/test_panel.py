"""What the Materialize panel shows of its traits, without a kernel."""

import pytest
from torch import nn

from meta_magic import record
from tests.browser.served import CHOICE, TRAITS
from tests.unit.materializing.modules import convolutions

FORECAST = (
    "replays 1 forward (262.0 GFLOPs, about 8 s), for 106 buffers of BatchNorm2d "
    "(bn1.running_mean, …)"
)


@pytest.fixture
def show(serve):
    """Show the panel with some traits; its page and its element."""

    def show_panel(**traits):
        with record() as trace:
            convolutions()
        page = serve(trace, **traits)
        return page, page.get_by_role("group", name="Materialize")

    return show_panel


def set_traits(page, **traits):
    page.evaluate(
        "(traits) => { Object.assign(window.traits, traits); listeners.change(); }",
        traits,
    )


def test_what_will_be_done_is_said_beside_the_choice_of_another_state(show, expect):
    page, panel = show(forecast=FORECAST)
    expect(panel).to_contain_text(FORECAST)
    panel.get_by_label("values").select_option("as constructed")
    assert page.evaluate("sent.at(-1).choice.values") == "as constructed"
    constructed = "320 operators, less than a second"
    set_traits(
        page, forecast=constructed, choice={**CHOICE, "values": "as constructed"}
    )
    expect(panel).to_contain_text(constructed)
    expect(panel).not_to_contain_text("replays")


def test_a_state_is_chosen_with_the_keyboard(show, expect):
    page, panel = show()
    panel.get_by_label("init").focus()
    page.keyboard.press("Tab")
    expect(panel.get_by_label("values")).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("sent.at(-1).choice.values") == "as constructed"


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_there_is_no_choice_of_a_state_where_nothing_is_replayed(show, expect, init):
    _page, panel = show(forecast="")
    panel.get_by_label("init").select_option(init)
    expect(panel.get_by_label("values")).to_be_hidden()
    panel.get_by_label("init").select_option("checkpoint")
    expect(panel.get_by_label("values")).to_be_visible()


def test_what_does_not_fit_cannot_be_begun_and_what_would_is_said(show, expect):
    fitting = "bfloat16 (3.1 GiB) or model.layers[0] (210.0 MiB)"
    page, panel = show(is_enough=False, needed="64.0 GiB", fitting=fitting)
    expect(panel).to_contain_text(
        f"needs 64.0 GiB · 8.0 GiB free on cpu · does not fit; what would: {fitting}"
    )
    assert panel.locator(".mm-danger").count() == 0
    expect(panel.get_by_role("button", name="Materialize")).to_be_disabled()
    set_traits(page, **{name: TRAITS[name] for name in ("is_enough", "fitting")})
    expect(panel.get_by_role("button", name="Materialize")).to_be_enabled()


def test_while_it_works_the_time_that_is_left_stands_beside_the_bar(show, expect):
    page, panel = show(state="running", progress=0.25, left="about 30 s left")
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel).to_contain_text("about 30 s left")
    set_traits(page, state="done", progress=1, message="`model` is now real, on cpu")
    expect(panel.get_by_text("about 30 s left")).to_be_hidden()
    expect(panel.get_by_role("status").locator("code")).to_have_text("model")


@pytest.fixture
def blocks():
    """A trace of two modules, the second of which has blocks."""
    with record() as trace:
        model = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    assert model[0].weight.is_meta
    return trace


TWO = {"roots": ["first: Linear", "net: Sequential", "all"], "places": [0, 1]}


def test_a_click_on_the_row_of_a_block_chooses_it(serve, expect, blocks):
    page = serve(blocks, **TWO)
    module = page.get_by_label("module", exact=True)
    expect(module).to_have_value("first: Linear")
    page.get_by_role("row", name="1 Linear").last.click()
    expect(module).to_have_value("net.1")
    chosen = page.evaluate("sent.at(-1)")
    assert (chosen["kind"], chosen["choice"]["root"]) == ("choose", 1)
    assert chosen["choice"]["path"] == "1"
    page.get_by_role("button", name="Materialize").click()
    assert page.evaluate("sent.at(-1).choice.path") == "1"
    module.select_option("net: Sequential")
    assert page.evaluate("sent.at(-1).choice") == {**CHOICE, "root": 1}
    module.select_option("all")
    assert page.evaluate("sent.at(-1).choice") == {**CHOICE, "root": 2}


def test_a_block_that_another_view_of_the_panel_chose_is_shown(serve, expect, blocks):
    page = serve(blocks, **TWO)
    page.evaluate("() => listeners['msg:custom']({})")
    set_traits(page, choice={**CHOICE, "root": 1, "path": "0"})
    expect(page.get_by_label("module", exact=True)).to_have_value("net.0")
