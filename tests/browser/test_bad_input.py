"""Reports of what nobody would write, in a window at 200 %, with the keyboard alone."""

import contextlib

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from tests.browser.served import VIEWS

HALF = {"width": 700, "height": 450}
"""A window of 1,400 by 900 pixels at 200 %."""

NAMES = ("<img src=x onerror=pwned=1>", "x" * 500, "אבג", "</script><script>pwned=1")


def call_by_hostile_names():
    layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in NAMES})
    y = torch.ones(2, 4)
    for name in NAMES:
        y = layers[name](y)


def call_2000_layers():
    nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(2000)))(
        torch.ones(2, 8)
    )


def call_one_operator():
    torch.ones(2, 3)


def call_a_module_5000_times():
    layer = nn.Linear(8, 8)
    h = torch.ones(2, 8)
    for _ in range(5000):
        h = layer(h)


class FailsAtOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        x = x @ torch.ones(7, 3)
        return self.layer(x)


def fail_in_the_first_line():
    FailsAtOnce()(torch.ones(2, 3))


@pytest.fixture(
    scope="module",
    params=[
        call_by_hostile_names,
        call_2000_layers,
        call_one_operator,
        call_a_module_5000_times,
        fail_in_the_first_line,
    ],
    ids=lambda function: function.__name__,
)
def file(request, tmp_path_factory):
    """The file of a report."""
    path = tmp_path_factory.mktemp("bad") / "report.html"
    with contextlib.suppress(RuntimeError), record() as trace:
        request.param()
    trace.to_html(path)
    return path


@pytest.fixture
def report(file, page):
    """The page of a report."""
    page.set_viewport_size(HALF)
    page.goto(file.as_uri())
    page.locator(".mm-live").wait_for()
    return page


def press_until(page, key, locator):
    """Press a key until something has the focus."""
    for _ in range(30):
        page.keyboard.press(key)
        if locator.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"{key} does not lead there")


WALK = """() => {
  const element = document.activeElement;
  if (element === document.body) return "";
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const [x, y] = [(left + right) / 2, (top + bottom) / 2];
  const clamp = (at, size) => Math.max(0, Math.min(size - 1, at));
  const at = document.elementFromPoint(clamp(x, innerWidth), clamp(y, innerHeight));
  const is_seen = element.contains(at) || at.contains(element);
  return is_seen ? "seen" : `hidden: ${element.outerHTML.slice(0, 200)}`;
}"""
"""Whether that which has the focus is hidden by something; "" outside of the report."""


def test_all_that_the_keyboard_leads_to_is_seen_and_left_again(report):
    if report.locator("details.mm-little").count():
        report.locator("summary").press("Enter")
    for view in VIEWS:
        report.get_by_role("tab", name=view).click()
        report.get_by_role("tab", name=view).focus()
        stops = []
        while len(stops) < 100 and (not stops or stops[-1]):
            report.keyboard.press("Tab")
            stops.append(report.evaluate(WALK))
        assert set(stops) <= {"seen", ""}
        assert not stops[-1]


def test_each_view_is_reached_by_keyboard_and_fits_the_window(report, expect):
    if report.locator("details.mm-little").count():
        press_until(report, "Tab", report.locator("summary"))
        report.keyboard.press("Enter")
    press_until(report, "Tab", report.get_by_role("tab", selected=True))
    for _ in VIEWS:
        report.keyboard.press("ArrowRight")
        view = report.get_by_role("tab", selected=True).text_content()
        expect(report.get_by_role("tabpanel", name=view)).not_to_be_empty()
        width = report.evaluate("() => document.documentElement.scrollWidth")
        assert width <= HALF["width"]
    assert (report.errors, report.logged) == ([], [])
    assert report.evaluate("() => window.pwned") is None


@pytest.mark.parametrize(
    "file", [call_by_hostile_names, fail_in_the_first_line], indirect=True
)
def test_axe_finds_nothing(report):
    for view in VIEWS:
        report.get_by_role("tab", name=view).click()
        results = Axe().run(report)
        assert results.violations_count == 0, results.generate_report()
