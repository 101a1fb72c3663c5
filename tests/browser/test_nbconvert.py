"""The report in the HTML that nbconvert makes of a notebook: no kernel is there."""

import subprocess
import sys

import pytest

from tests.browser.lab import write_notebook

pytestmark = pytest.mark.kernel

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
y = model(torch.ones(2, 8))""",
    "_meta.charts()",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory, forked_kernels):
    """A notebook that nbconvert executed, without any front end."""
    path = tmp_path_factory.mktemp("nbconvert") / "book.ipynb"
    write_notebook(path, *CELLS)
    convert(path, "notebook", "--execute", "--inplace")
    return path


def convert(path, to, *options):
    command = [sys.executable, "-m", "nbconvert", "--to", to, *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["--to html", "--to html --execute"])
def html(request, executed, tmp_path_factory):
    """The notebook as a page."""
    path = tmp_path_factory.mktemp("html") / "book.ipynb"
    if "--execute" in request.param:
        write_notebook(path, *CELLS)
        convert(path, "html", "--execute")
    else:
        path.write_text(executed.read_text())
        convert(path, "html")
    return path.with_suffix(".html")


def test_the_report_lives_in_converted_html(html, page, expect):
    # No network: what nbconvert itself would load from elsewhere does not come.
    page.route("http*://**", lambda route: route.abort())
    page.goto(html.as_uri())
    report = page.locator(".mm-root")
    run = report.get_by_role("row").filter(has_text="0-11")
    expect(run).to_be_visible()
    run.locator("i").click()
    expect(report.get_by_role("row").filter(has_text="1-11")).to_be_visible()
    report.get_by_role("tab", name="Flow").click()
    expect(report.get_by_role("treeitem").first).to_be_visible()
    report.get_by_role("tab", name="Source").click()
    expect(report.get_by_role("tabpanel", name="Source")).to_contain_text("(2, 8)")


def test_the_chart_is_a_picture_in_converted_html(html, page, expect):
    page.route("http*://**", lambda route: route.abort())
    page.goto(html.as_uri())
    chart = page.get_by_role("img", name="Parameter bytes by module").last
    expect(chart).to_be_visible()
    expect(chart).to_have_text("0-11: 12 x Linear — 3.4 KiB")
