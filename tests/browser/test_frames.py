"""The report in frames and pages that allow little, or are dark in their own ways."""

from html import escape

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.browser.served import VIEWS, list_unreadable, show

SANDBOX = '<iframe sandbox="allow-scripts" srcdoc="{}"></iframe><textarea></textarea>'
"""Neither storage, clipboard, full screen nor downloads."""

SIZE = "iframe { width: 100%; height: 800px; border: 0 }"

THEMES = {
    "dark by its colours": "body { background: #1f1f1f; color: #d4d4d4 }",
    "light, where the system is dark": "body { background: #fff; color: #333 }",
    "VS Code's Light+": """body { background: #fff; color: #000;
      --vscode-foreground: #616161; --vscode-editor-foreground: #000;
      --vscode-editor-background: #fff; --vscode-panel-border: #80808059 }""",
    "VS Code's Dark Modern": """body { background: #1f1f1f; color: #ccc;
      --vscode-foreground: #ccc; --vscode-editor-foreground: #ccc;
      --vscode-editor-background: #1f1f1f; --vscode-panel-border: #2b2b2b }""",
}
"""Pages that say no colour scheme."""

STRIP = """([html, unknown]) => {
  const template = document.createElement("template");
  template.innerHTML = html;
  const { content } = template;
  for (const element of content.querySelectorAll("script, style")) element.remove();
  for (const element of content.querySelectorAll("*")) {
    for (const name of ["class", "id", "style"]) element.removeAttribute(name);
    if (unknown.includes(element.localName)) element.replaceWith(...element.childNodes);
  }
  document.body.replaceChildren(content);
}"""
"""Shows what is left without scripts, styles, and tags that somebody does not know."""


@pytest.fixture(scope="module")
def html():
    """What a cell leaves in a notebook."""
    with record() as trace:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
        model(torch.ones(2, 8)).sum().backward()
    return trace._repr_html_()


@pytest.fixture
def open_page(page, expect):
    """Open a page of the given body and styles; what stands in it may be a frame."""

    def open_body(body, styles=SIZE):
        head = f"<!doctype html><title>notebook</title><style>{styles}</style>"
        page.set_content(f"{head}<body>{body}")
        frame = page.frame_locator("iframe") if "<iframe" in body else page
        expect(frame.locator(".mm-live")).to_be_visible()
        return frame

    yield open_body
    assert (page.errors, page.logged) == ([], [])


@pytest.fixture
def sandbox(open_page, html):
    return open_page(SANDBOX.format(escape(html)))


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_drawn_where_scripts_alone_are_allowed(sandbox, view, expect):
    expect(show(sandbox, view)).not_to_be_empty()
    show(sandbox, "Modules").get_by_role("row").filter(has_text="0-11").click()
    expect(sandbox.get_by_role("group", name="Details")).to_be_visible()
    expect(show(sandbox, view)).to_be_visible()


def test_columns_are_chosen_where_nothing_is_kept(sandbox, expect):
    operators = show(sandbox, "Operators")
    operators.get_by_role("button", name="Columns").click()
    operators.get_by_role("checkbox", name="phase").check()
    expect(operators.get_by_role("columnheader", name="phase")).to_be_visible()


def test_a_table_is_copied_where_nobody_may_ask_for_the_clipboard(
    sandbox, page, expect
):
    sandbox.get_by_role("button", name="Copy as CSV").click()
    expect(sandbox.get_by_text("copied")).to_be_visible()
    page.locator("textarea").press("Control+v")
    assert page.locator("textarea").input_value().startswith('"name","class"')


def test_full_screen_is_offered_where_it_is_allowed_alone(
    sandbox, open_page, html, expect
):
    expect(show(sandbox, "Flow").get_by_label("Full screen")).to_have_count(0)
    flow = show(open_page(html), "Flow")
    expect(flow.get_by_label("Full screen")).to_be_visible()


@pytest.mark.parametrize("theme", THEMES)
def test_the_colours_fit_a_page_that_says_no_scheme(theme, open_page, page, html):
    page.emulate_media(color_scheme="dark" if "system" in theme else "light")
    report = open_page(f'<div id="report">{html}</div>', THEMES[theme])
    report.get_by_role("row").filter(has_text="0-11").click()  # with its details
    for view in VIEWS:
        show(report, view)
        assert (view, list_unreadable(page, "check_colors")) == (view, [])


def test_the_colours_follow_the_theme(open_page, page, html, expect):
    dark = "[theme=dark] body { background: #1f1f1f; color: #d4d4d4 }"
    root = open_page(f"<main>{html}</main>", dark).locator(".mm-root")
    expect(root).to_have_css("color-scheme", "light")
    page.evaluate("document.documentElement.setAttribute('theme', 'dark')")
    expect(root).to_have_css("color-scheme", "dark")


def test_a_frame_of_its_own_looks_like_the_page_round_it(open_page, page, html, expect):
    frame = open_page(
        f'<iframe srcdoc="{escape(html)}"></iframe>',
        f"{SIZE} body {{ color: #ddd; color-scheme: dark }}",
    )
    expect(frame.locator(":root")).to_have_css("color-scheme", "dark")
    page.evaluate("document.body.style = 'color: #222'")
    expect(frame.locator(":root")).to_have_css("color-scheme", "light")
    # With the height of its content, which pages without a doctype do not say.
    assert page.frames[1].evaluate("document.compatMode") == "CSS1Compat"


@pytest.mark.parametrize("unknown", [[], ["details", "summary"]], ids=str)
def test_without_scripts_styles_and_attributes_a_tree_is_left(page, html, unknown):
    page.evaluate(STRIP, [html, unknown])
    lines = page.locator("body").inner_text().splitlines()
    assert lines[0].startswith("864 parameters, 3.4 KiB · ")
    rows = [page.get_by_text(text) for text in ("model: 12 x", "0-11: 12 x Linear")]
    model, run = (row.bounding_box() for row in rows)
    assert model["x"] < run["x"]
    assert model["y"] + model["height"] <= run["y"]
    assert "0-11: 12 x Linear 864 3.4 KiB (2, 8) → (2, 8)" in "\n".join(lines)
