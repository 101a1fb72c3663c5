"""The report, charts, shown values and the progress line in a real kernel."""

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
        ("", {"depth": None, "height": None, "parameters": False}),
        ("--depth 4", {"depth": 4, "height": None, "parameters": False}),
        (
            "--height 300 --parameters",
            {"depth": None, "height": 300, "parameters": True},
        ),
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


METADATA = re.compile(r",\s+(device='meta'|size=\([\d, ]*\)|dtype=torch\.\w+)")


def values_in(text):
    """Return a text without what torch says after values on meta, nor its breaks."""
    return re.sub(r"[\s-]+", " ", METADATA.sub("", text))


SEED = "torch.manual_seed(0)\nx = torch.randn(2, 3)\n"

SHOWN = {
    "a tensor": "x",
    "a list": "[x, x.sum(), 3]",
    "a dictionary": "{'a': x, 'b': {'c': x.int()}}",
    "a parameter": "nn.Linear(2, 2).weight",
    "a gradient": "(nn.Linear(3, 2)(x) ** 2).mean()",
    "a table": "import pandas as pd\npd.DataFrame({'a': list(x[0]), 'b': [1, 2, 3]})",
    "an object": (
        "class Pair:\n"
        "    def __init__(self, a): self.a = a\n"
        "    def __repr__(self): return f'{self.a} {self.a.shape}'\n"
        "Pair(x)"
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_has_the_values_of_the_cpu(kernel, name):
    wanted = kernel.run(SEED + SHOWN[name])
    recorded = kernel.run(f"%%meta -q\n{SEED}{SHOWN[name]}")
    assert recorded.status == "ok"
    assert values_in(recorded.value) == values_in(wanted.value)


def test_what_is_shown_again_has_its_values(kernel):
    number = kernel.run("%%meta -q\ntorch.arange(3)").content["execution_count"]
    wanted = "tensor([0, 1, 2], device='meta', size=(3,), dtype=torch.int64)"
    assert kernel.run(f"Out[{number}]").value == wanted
    assert wanted in str(kernel.run(f"display(Out[{number}])").outputs)


def test_what_takes_too_much_is_shown_without_values(kernel):
    run = kernel.run("%%meta -q\ntorch.ones(9999, 9999)")
    assert run.value == "tensor(..., device='meta', size=(9999, 9999))"


def test_what_was_written_since_is_shown_without_values(kernel):
    kernel.run("%%meta -q\nx = torch.ones(2)")
    kernel.run("x.add_(1)")
    assert kernel.run("x").value == "tensor(..., device='meta', size=(2,))"


def test_a_tensor_is_displayed_with_its_values_while_the_cell_runs(kernel):
    run = kernel.run("%%meta -q\nx = torch.ones(2)\ndisplay([x])\ny = x.zero_()")
    shown = [output["data"]["text/plain"] for output in run.outputs]
    assert "[tensor([1., 1.], device='meta', size=(2,))]" in shown


def test_a_trace_shows_its_report(kernel):
    kernel.run("%%meta -q -o trace\ntorch.ones(2)")
    run = kernel.run("trace")
    assert run.value is None
    assert [sorted(output["data"]) for output in run.plain_outputs] == [
        ["text/html", "text/plain"]
    ]
    assert kernel.run("[trace]").value == "[<Trace: 1 operators, 0 module trees>]"


WAIT = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)"


@pytest.fixture
def wait_for_progress(kernel, tmp_path):
    """Run a cell for as long as it takes to see its progress line."""

    def run(source: str):
        path = tmp_path / "seen"
        wait = WAIT.format(path=str(path))

        def end_when_seen(kind, content):
            if "so far" in content.get("data", {}).get("text/plain", ""):
                path.touch()

        return kernel.run(source.format(wait=wait), end_when_seen)

    return run


def test_a_long_cell_says_how_far_it_is(wait_for_progress):
    run = wait_for_progress("%%meta\nx = torch.ones(2)\n{wait}")
    lines = [content["data"]["text/plain"] for kind, content in run.messages
             if kind == "display_data"]  # fmt: skip
    assert len(lines) == 2  # the other is the live report's
    assert lines[0].startswith("%%meta: 1 operators so far, ")


def test_the_progress_line_becomes_the_report(wait_for_progress):
    run = wait_for_progress("%%meta\n{wait}")
    assert len(run.plain_outputs) == len(run.reports) == 1
    assert "so far" not in run.reports[0]["text/plain"]


def test_the_progress_line_of_a_failing_cell_becomes_its_explanation(wait_for_progress):
    run = wait_for_progress("%%meta\n{wait}\nnn.Linear(2, 3)(torch.ones(5))")
    why, recording = run.reports
    assert why["text/plain"].startswith("Linear(2 -> 3) got (5,) at line ")
    assert recording["text/plain"].startswith("Recording: 7 operators up to line ")
    assert len(run.errors) == 1


def test_no_progress_line_outlives_an_interrupted_report(kernel):
    # Its class raises when it is looked at, as an interrupt would at that moment.
    kernel.run(
        "class Interrupts:\n    @property\n    def __class__(self):\n"
        "        raise KeyboardInterrupt\n"
    )
    kernel.run("%%meta\nx = Interrupts()")
    kernel.run("del x")
    threads = kernel.run("import threading\n[t.name for t in threading.enumerate()]")
    assert "meta_magic progress" not in threads.value
