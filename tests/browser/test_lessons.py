"""A lesson in a browser: right and wrong, by mouse, by keyboard, for all eyes."""

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from meta_magic import record

PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>lesson</title>'
    '<meta name="color-scheme" content="light dark"><body style="background: Canvas; '
    'color: CanvasText"><main><h1>Lesson</h1>%s</main></body></html>'
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The address of a lesson, saved as a file."""
    with pytest.raises(RuntimeError), record(as_device="cpu") as trace:
        a, b = torch.ones(3), torch.ones(4)
        x = a[:, None] + b
        turned = x.permute(1, 0)
        flat = turned.reshape(12)
        flat @ x
    path = tmp_path_factory.mktemp("lesson") / "lesson.html"
    path.write_text(PAGE % trace.teach()._repr_html_(), "utf-8")
    return path.as_uri()


@pytest.fixture
def lesson(page, saved):
    """The page of the lesson."""
    page.goto(saved)
    page.locator(".mm-step").first.wait_for()
    yield page
    assert (page.errors, page.logged) == ([], [])


def find_step(lesson, code):
    return lesson.get_by_role("region", name=code)


def test_a_right_answer_by_mouse_shows_the_picture(lesson, expect):
    step = find_step(lesson, "x = a[:, None] + b")
    expect(step.locator(".mm-picture")).to_have_count(0)
    step.get_by_role("textbox").fill("torch.Size([3, 4])")
    step.get_by_role("button", name="Check").click()
    expect(step.locator(".mm-verdict")).to_contain_text("Right: (3, 4)")
    expect(step.get_by_role("gridcell")).to_have_count(12)


def test_a_wrong_answer_by_keyboard_is_said_by_its_kind(lesson, expect):
    lesson.keyboard.press("Tab")
    field = find_step(lesson, "x = a").get_by_role("textbox")
    expect(field).to_be_focused()
    lesson.keyboard.type("4, 3")
    lesson.keyboard.press("Enter")
    verdict = find_step(lesson, "x = a").locator(".mm-verdict")
    expect(verdict).to_contain_text("sizes are right, their order is not")
    lesson.keyboard.press("Tab")  # the button
    lesson.keyboard.press("Tab")  # the element that is picked
    lesson.keyboard.press("ArrowRight")
    expect(lesson.get_by_role("gridcell", name="[0, 1]")).to_be_focused()


def test_a_choice_is_made_by_a_button(lesson, expect):
    step = find_step(lesson, "flat = turned.reshape(12)")
    step.get_by_role("button", name="a view").press("Enter")
    expect(step.locator(".mm-verdict")).to_contain_text("Not a view, but a copy")


def test_what_cannot_be_read_is_no_try(lesson, expect):
    step = find_step(lesson, "turned = x.permute")
    step.get_by_role("textbox").fill("what?")
    step.get_by_role("textbox").press("Enter")
    expect(step.locator(".mm-verdict")).to_contain_text("Write a number")
    expect(step.locator(".mm-picture")).to_have_count(0)


def test_the_tries_are_counted_and_the_failure_is_the_end(lesson, expect):
    step = find_step(lesson, "turned = x.permute")
    # [1, 0] of the permuted tensor is [0, 1] of x.
    step.get_by_role("textbox").fill("1")
    step.get_by_role("textbox").press("Enter")
    expect(lesson.get_by_text("1 of 1 right, 2 to go")).to_be_visible()
    expect(lesson.get_by_text("The cell failed")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 700, 1000])
def test_it_fits_and_can_be_used_by_everyone(lesson, scheme, width):
    lesson.set_viewport_size({"width": width, "height": 900})
    lesson.emulate_media(color_scheme=scheme)
    for field in lesson.get_by_role("textbox").all():
        field.fill("3, 4" if "sizes" in field.get_attribute("placeholder") else "7")
        field.press("Enter")
    assert lesson.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(lesson)
    assert found.response["violations"] == [], found.generate_report()


def test_an_answer_is_judged_at_once(lesson):
    step = find_step(lesson, "x = a")
    step.get_by_role("textbox").fill("3, 4")
    seconds = lesson.evaluate("""() => {
      const step = [...document.querySelectorAll(".mm-step")][0];
      const start = performance.now();
      step.querySelector("button").click();
      step.getBoundingClientRect();
      return (performance.now() - start) / 1000;
    }""")
    assert seconds < 0.5  # a tenth on a machine that does nothing else
