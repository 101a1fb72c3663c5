"""Whether it fits: what a saved report shows, and what a kernel works out."""

import json
import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from meta_magic.trials.fit import fit_trace
from meta_magic.view.fits_of_sizes import NOTHING, FitsOf, offer_fits
from tests.browser.served import list_unreadable
from tests.unit.view.panels import TIMEOUT
from tests.unit.wasteful import Block

DEVICE = "t4"
CHOICES = ("checkpointing", "fused")


def train(batch, width=2048, depth=4):
    model = nn.Sequential(nn.Sequential(*(Block(width) for _ in range(depth))))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(batch, width)).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def trace():
    batch = 64
    with record() as trace:
        train(batch)
    return trace


@pytest.fixture(scope="module")
def worked_out(trace):
    """What a kernel sends a report, as traits."""
    sent = {}
    fits = FitsOf(trace, lambda **traits: sent.update(traits))
    fits.receive({"name": "batch", "choices": [*CHOICES], "device": DEVICE})
    fits.wait(TIMEOUT)
    assert sent["fit_state"] == {"is_running": False, "message": ""}
    return json.loads(json.dumps({"fit_offer": offer_fits(trace), **sent}))


def show_memory(page):
    page.get_by_role("tab", name="Memory").click()
    return page.get_by_role("tabpanel", name="Memory")


def find_row(memory, device):
    button = memory.page.get_by_role("button", name=device, exact=True)
    return memory.get_by_role("row").filter(has=button)


def send(page, **traits):
    page.evaluate(
        "(traits) => { Object.assign(window.traits, traits); listeners.change(); }",
        traits,
    )


def test_a_saved_report_says_which_accelerators_have_room(
    tmp_path, page, trace, expect
):
    trace.to_html(tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    memory = show_memory(page)
    peak = trace.memory.peak_nbytes
    expect(memory).to_contain_text("Will it fit? The recorded peak is ")
    expect(find_row(memory, "t4")).to_contain_text(f"{peak / 16e9:.1%}, fits")
    expect(find_row(memory, "mi325x")).to_contain_text("256 GB")
    expect(find_row(memory, "xeon-8480")).to_have_count(0)
    expect(memory.get_by_role("button", name="Work out")).to_have_count(0)


def test_what_does_not_fit_is_said(tmp_path, page, expect):
    with record() as large:
        x = torch.ones(20 * 10**9, dtype=torch.uint8)
        x.clone()
        x.numel(), x[:1].clone(), x[:1].clone()
    large.to_html(tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    memory = show_memory(page)
    expect(find_row(memory, "a100-sxm-40gb")).to_contain_text("100.0%, fits")
    expect(find_row(memory, "t4")).to_contain_text("250.0%, does not fit")


def test_a_kernel_is_asked_for_a_size_and_choices(serve, trace, expect):
    page = serve(trace)
    memory = show_memory(page)
    memory.get_by_role("button", name=DEVICE, exact=True).click()
    memory.get_by_label("size").select_option("width")
    memory.get_by_label("checkpointing").check()
    memory.get_by_role("button", name="Work out").press("Enter")
    asked = page.evaluate("() => sent.findLast(({ kind }) => kind === 'fit')")
    assert asked == {
        "kind": "fit",
        "name": "width",
        "choices": ["checkpointing"],
        "device": DEVICE,
        "at": {},  # no slider was moved
    }


def test_a_kernel_is_asked_for_which_sizes_the_cell_runs(serve, trace, expect):
    page = serve(trace)
    memory = show_memory(page)
    status = memory.locator("p[role=status]")
    memory.get_by_label("size").select_option("width")
    memory.get_by_role("button", name="Which run?").press("Enter")
    expect(status).to_have_text("recording it with other values of width…")
    asked = page.evaluate("() => sent.at(-1)")
    assert asked == {"kind": "check", "id": 0, "name": "width"}
    answer = {"kind": "check", "id": 0, "text": str(trace.check("width"))}
    page.evaluate("(answer) => listeners['msg:custom'](answer)", answer)
    expect(status).to_have_text(re.compile("width may be any size: [0-9]+ from 1 to"))
    send(page, fit_state={"is_running": True, "message": "recording it again"})
    expect(memory.get_by_role("button", name="Which run?")).to_be_disabled()


def test_while_it_works_it_can_be_stopped(serve, trace, expect):
    page = serve(trace)
    memory = show_memory(page)
    state = {"is_running": True, "message": "recording it again, 3 so far"}
    send(page, fit_state=state)
    expect(memory.locator("p[role=status]")).to_have_text(
        "recording it again, 3 so far…"
    )
    expect(memory.get_by_role("button", name="Work out")).to_be_disabled()
    memory.get_by_role("button", name="Stop").click()
    assert page.evaluate("() => sent.at(-1)") == {"kind": "fit"}
    send(page, fit_state={"is_running": False, "message": "stopped"})
    expect(memory.locator("p[role=status]")).to_have_text("not worked out: stopped")
    expect(memory.get_by_role("button", name="Stop")).to_be_hidden()


@pytest.fixture
def answered(serve, trace, worked_out):
    """The Memory view once a kernel has answered."""
    page = serve(trace, **worked_out)
    memory = show_memory(page)
    memory.get_by_role("button", name=DEVICE, exact=True).click()
    return memory


def test_the_table_has_the_largest_size_for_each_choice(answered, trace, expect):
    for choices in ((), ("checkpointing",), ("fused",), CHOICES):
        for device in (DEVICE, "h100-sxm"):
            largest = fit_trace(trace, device, {"batch": ...}, choices).largest["batch"]
            expect(find_row(answered, device)).to_contain_text(f"{largest:,}")
    heads = answered.locator("thead tr").last
    expect(heads).to_contain_text("checkpointing + fused")


def test_the_slider_moves_the_curve_and_back(answered, trace, expect):
    chart = answered.get_by_role("slider", name="Operator")
    slider = answered.get_by_role("slider", name="batch")
    peak = answered.get_by_role("button", name="peak")
    expect(slider).to_have_value("64")
    recorded = peak.text_content()
    slider.fill("2048")
    with record() as other:
        train(2048)
    nbytes = other.memory.peak_nbytes / 2**30
    expect(answered).to_contain_text(
        "Bytes alive after each operator with batch = 2048"
    )
    expect(peak).to_have_text(f"peak {nbytes:.1f} GiB")
    index = str(other.memory.peak_index)
    expect(chart).to_have_attribute("aria-valuenow", index)
    slider.press("ArrowRight")
    expect(slider).to_have_value("2049")
    answered.get_by_role("button", name="as recorded").press("Enter")
    expect(peak).to_have_text(recorded)
    expect(slider).to_have_value("64")


def test_the_chart_shows_the_peaks_at_the_size(answered, expect):
    chart = answered.get_by_role("img", name="Peak over batch")
    lines = answered.locator(".mm-peaks path[class^=mm-line]")
    expect(lines).to_have_count(4)
    expect(chart).to_contain_text("t4, 16 GB")
    name = chart.get_attribute("aria-label")
    assert re.search(r"with batch = 64, as it is: [\d.]+ GiB, checkpointing: ", name)
    box = chart.bounding_box()
    chart.click(position={"x": box["width"] / 2, "y": 60})
    expect(answered).to_contain_text(re.compile(r"operator with batch = \d{3,}"))


def test_what_would_make_it_fit_is_said(serve, trace, worked_out, expect):
    plain, *others = worked_out["growths"]
    least = 17 * 10**9
    none = plain | {
        "highest": [[least] * 3],
        "recorded": [[1, least], [64, least]],
        "largest": 0,
    }
    page = serve(trace, **worked_out | {"growths": [none, *others]})
    memory = show_memory(page)
    memory.get_by_role("button", name=DEVICE, exact=True).click()
    expect(memory).to_contain_text("NVIDIA T4: no batch fits, 1 takes 15.8 GiB; ")
    expect(memory).to_contain_text(re.compile(r"checkpointing \+ fused: up to [\d,]+"))
    send(page, growths=[none])
    expect(memory).to_contain_text("1 takes 15.8 GiB; a choice may help.")


def test_where_programs_differ_there_are_points(serve, trace, worked_out, expect):
    points = worked_out["growths"][0] | {"sizes": [], "highest": []}
    sent = worked_out | {"growths": [points], "stretches": {}}
    memory = show_memory(serve(trace, **sent))
    memory.get_by_role("button", name=DEVICE, exact=True).click()
    expect(memory).to_contain_text("Operators differ by size: each point was recorded")
    expect(memory.locator(".mm-peaks path[class^=mm-line]")).to_have_count(0)
    recorded = len(points["recorded"])
    expect(memory.locator(".mm-peaks circle")).to_have_count(recorded)
    expect(find_row(memory, "l4")).to_contain_text("not known")


def test_a_choice_that_fails_says_why(serve, trace, worked_out, expect):
    plain, other, *_ = worked_out["growths"]
    failed = other | {"reason": "it raises RuntimeError: same dtype", "highest": []}
    memory = show_memory(serve(trace, **worked_out | {"growths": [plain, failed]}))
    expect(memory).to_contain_text("With checkpointing: it raises RuntimeError")
    expect(find_row(memory, "l4")).to_contain_text("not known")


def test_a_processor_whose_memory_varies_is_not_asked_about(serve, trace, expect):
    page = serve(trace)
    page.get_by_role("tab", name="Charts").click()
    chooser = page.get_by_role("tabpanel", name="Charts").locator(".mm-device")
    chooser.select_option("AMD EPYC 9654")
    memory = show_memory(page)
    expect(memory).to_contain_text("How much memory AMD EPYC 9654 has varies")
    expect(memory.get_by_role("button", name="Work out")).to_be_disabled()
    memory.get_by_role("button", name="l4", exact=True).click()
    expect(memory.get_by_role("button", name="Work out")).to_be_enabled()


def test_without_a_size_the_way_to_one_is_said(serve, trace, expect):
    offer = {"sizes": {}, "choices": [], "reason": NOTHING}
    memory = show_memory(serve(trace, fit_offer=offer))
    expect(memory).to_contain_text("cannot be tried: the cell reads no name")
    expect(memory.get_by_role("button", name="Work out")).to_have_count(0)


TWO_FRAMES = (
    "() => new Promise((done) =>"
    " requestAnimationFrame(() => requestAnimationFrame(done)))"
)


@pytest.mark.parametrize("width", [400, 700, 1440])
def test_a_person_can_read_what_fits(answered, width):
    page = answered.page
    page.set_viewport_size({"width": width, "height": 1400})
    page.keyboard.press("Tab")
    page.evaluate(TWO_FRAMES)  # the curve is drawn anew for its width
    assert list_unreadable(page) == []


def test_everyone_can_use_it(answered):
    found = Axe().run(answered.page)
    assert found.response["violations"] == [], found.generate_report()
