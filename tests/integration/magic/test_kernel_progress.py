"""The progress line of a cell in a real kernel."""

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]


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


def test_the_progress_line_of_a_quiet_cell_is_emptied(wait_for_progress):
    run = wait_for_progress("%%meta -q\n{wait}")
    assert [output["data"] for output in run.outputs] == [
        {"text/plain": "", "text/html": ""}
    ]


def test_the_progress_line_of_a_failing_cell_becomes_the_report(wait_for_progress):
    run = wait_for_progress("%%meta\n{wait}\n1 / 0")
    assert "stopped by ZeroDivisionError" in run.reports[0]["text/plain"]
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
