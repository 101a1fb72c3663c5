"""Options of the report, and charts, in a real kernel."""

import json
import re

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]


def test_charts_are_a_plotly_figure_with_a_picture_beside(kernel):
    kernel.run("%%meta -q\nmodel = torch.nn.Linear(3, 1, bias=False)")
    (output,) = kernel.run("_meta.charts()").outputs
    assert set(output["data"]) == {
        "application/vnd.plotly.v1+json",
        "text/html",
        "text/plain",
    }


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {"depth": None, "height": 420, "hide": ["parameters"]}),
        ("--depth 4", {"depth": 4, "height": 420, "hide": ["parameters"]}),
        ("--height 300 --parameters", {"depth": None, "height": 300, "hide": []}),
    ],
)
def test_options_set_the_report(kernel, options, settings):
    run = kernel.run(f"%%meta {options}\ntorch.ones(2)")
    assert read_settings(run) == settings


def test_a_default_is_configured(kernel):
    kernel.run("%config MetaMagics.depth = 5")
    try:
        run = kernel.run("%%meta\ntorch.ones(2)")
    finally:
        kernel.run("%config MetaMagics.depth = None")
    assert read_settings(run)["depth"] == 5


def read_settings(run):
    """Return the settings in the report that a cell left."""
    html = run.outputs[0]["data"]["text/html"]
    start = re.search(r'report\.start\("[^"]+", (\{.*?\}), \[', html)
    return json.loads(start[1])
