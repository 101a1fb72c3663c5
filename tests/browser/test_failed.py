"""The report of a block that failed: the call that raised is red."""

import contextlib

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record

pytestmark = pytest.mark.browser


def show(page, name):
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel", name=name)


@pytest.fixture(scope="module")
def failed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 2))
    with contextlib.suppress(RuntimeError), record() as trace:
        model(torch.ones(3, 8))
    return trace


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_operator_that_raised_is_red_in_each_view(serve, failed, scheme, expect):
    page = serve(failed)
    page.emulate_media(color_scheme=scheme)
    *_, last = show(page, "Operators").get_by_role("row").all()
    expect(last).to_contain_text("aten.addmm")
    expect(last).to_contain_text(failed.error)
    red = "rgb(217, 48, 37)" if scheme == "light" else "rgb(255, 123, 114)"
    expect(last.get_by_role("gridcell").first).to_have_css("color", red)
    assert Axe().run(page).violations_count == 0
    last.click()  # the flow brings it into sight
    expect(show(page, "Flow").locator(".mm-failed")).to_contain_text("✗ ")
    assert Axe().run(page).violations_count == 0
