"""The cell as it is shown: its colours, and expressions over several lines."""

import pytest
from axe_playwright_python.sync_playwright import Axe

pytestmark = pytest.mark.browser

CELL = """%%meta -q
model = torch.nn.ReLU()
for i in range(2):  # twice
    y = model(
        torch.ones(
            3
        )
    )
    s = "of type \\N{BULLET}"
"""


@pytest.fixture
def source(serve, shell):
    """The source of a cell with an expression of several lines, in the report."""
    shell.run_cell(CELL).raise_error()
    page = serve(shell.user_ns["_meta"], roots=[])
    page.get_by_role("tab", name="Source").click()
    return page.get_by_role("tabpanel", name="Source")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_of_text_differ_in_colour_and_can_be_read(source, scheme):
    source.page.emulate_media(color_scheme=scheme)
    texts = ["for", "range", "2", "# twice", '"of type \\N{BULLET}"']
    colours = {
        source.get_by_text(text, exact=True).first.evaluate(
            "element => getComputedStyle(element).color"
        )
        for text in texts
    }
    assert len(colours) == len(texts)
    source.locator(".mm-source-expression").first.click()  # on what is marked, too
    results = Axe().run(source.page)
    assert results.violations_count == 0, results.generate_report()


def test_an_expression_of_several_lines_is_marked_on_all_of_them(source, expect):
    first = source.locator(".mm-source-expression").filter(has_text="model(")
    first.hover()
    expect(source.locator(".mm-near")).to_have_count(5)
    first.click()
    marked = source.locator(".mm-source-expression.mm-selected")
    expect(marked).to_have_text(["model(", "torch.ones(", "3", ")", ")"])


def test_an_expression_inside_of_one_of_several_lines_is_marked_alone(source, expect):
    source.locator(".mm-source-expression .mm-source-expression").first.click()
    marked = source.locator(".mm-source-expression.mm-selected")
    expect(marked).to_have_text(["torch.ones(", "3", ")"])


def test_an_expression_of_several_lines_is_one_stop_of_the_keyboard(source, expect):
    box = source.get_by_role("group", name="Source")
    stops = box.locator(".mm-source-expression[tabindex='0']")
    expect(stops).to_have_count(2)
    stops.first.focus()
    source.page.keyboard.press("Enter")
    expect(source.locator(".mm-source-expression.mm-selected")).to_have_count(5)
