"""Sizes by name in a saved report, and the switch that shows numbers."""

import pytest
import torch
from torch import nn

from meta_magic import record

pytestmark = pytest.mark.browser


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
