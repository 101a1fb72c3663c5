"""``%%meta`` in a real kernel: values, reports, progress, interrupts, requests."""

import json
import re

import IPython
import pytest

from tests.integration.kernels import RunningKernel

pytestmark = pytest.mark.kernel

CLEAN = "(0, 0, 'cpu')"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = RunningKernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.stop()


@pytest.fixture(autouse=True)
def kernel_is_left_alone(kernel):
    yield
    assert kernel.torch_state() == CLEAN


def test_the_last_expression_is_shown_as_out(kernel):
    run = kernel.run("%%meta\ntorch.ones(2, 3).sum(0).shape")
    assert run.value == "torch.Size([3])"


def test_out_has_the_number_of_the_cell(kernel):
    run = kernel.run("%%meta\n41 + 1")
    number = run.content["execution_count"]
    assert kernel.run(f"Out[{number}]").value == "42"


@pytest.mark.skipif(
    IPython.version_info < (8, 3), reason="IPython 7 cannot silence a magic's value"
)
def test_a_semicolon_silences_the_value(kernel):
    assert kernel.run("%%meta\n41 + 1;").value is None


def test_the_report_stands_above_the_value(kernel):
    run = kernel.run("%%meta\ntorch.ones(2).shape")
    kinds = [kind for kind, _ in run.messages if kind == "display_data"]
    assert kinds == ["display_data"] * 2
    assert [sorted(output["data"]) for output in run.plain_outputs] == [
        ["text/html", "text/plain"],
        ["text/plain"],
    ]


def test_quiet_shows_no_report(kernel):
    run = kernel.run("%%meta -q\nx = torch.ones(2)")
    assert run.outputs == []


def test_a_quiet_cell_shows_its_value(kernel):
    assert kernel.run("%%meta -q\n41 + 1").value == "42"


def test_displays_of_the_cell_come_before_the_report(kernel):
    run = kernel.run("%%meta\nfor i in range(2): display(i)")
    assert [output["data"]["text/plain"] for output in run.outputs[:2]] == ["0", "1"]
    assert len(run.reports) == 1
    assert len(run.plain_outputs) == 3


def test_a_cell_runs_twice_as_once(kernel):
    values = [kernel.run("%%meta\nlen(torch.ones(3))").value for _ in range(2)]
    assert values == ["3", "3"]


# Requests that are not a user's ordinary cell.


def test_a_silent_request_succeeds(kernel):
    run = kernel.run("%%meta\nsilently = torch.ones(2)", silent=True)
    assert run.status == "ok"
    assert kernel.run("silently.device.type").value == "'meta'"


def test_a_silent_request_fails_with_its_error(kernel):
    assert kernel.run("%%meta\n1 / 0", silent=True).content["ename"] == (
        "ZeroDivisionError"
    )


def test_a_request_without_history_marks_the_line_of_its_error(kernel):
    run = kernel.run("%%meta\n\n1 / 0", store_history=False)
    assert run.marked_lines == [3]


def test_a_request_without_history_after_another_cell_marks_its_own_line(kernel):
    kernel.run("%%meta\n1")
    run = kernel.run("%%meta\n\n\n\n1 / 0", store_history=False)
    assert run.marked_lines == [5]


def test_user_expressions_see_what_the_cell_made(kernel):
    run = kernel.run("%%meta\nz = 7", user_expressions={"z": "z"})
    assert run.content["user_expressions"]["z"]["data"]["text/plain"] == "7"


def test_input_is_refused_as_in_any_cell(kernel):
    run = kernel.run("%%meta\ninput('name')")
    assert run.content["ename"] == "StdinNotImplementedError"


# Functions defined in the cell.


def test_the_source_of_a_function_of_the_cell_is_found(kernel):
    run = kernel.run(
        "%%meta\nimport inspect\n\ndef double(x):\n    return 2 * x\n\n"
        "inspect.getsource(double)"
    )
    assert run.value == repr("def double(x):\n    return 2 * x\n")


def test_the_source_is_found_from_a_later_cell(kernel):
    kernel.run("%%meta\n\ndef triple(x):\n    return 3 * x")
    run = kernel.run("import inspect\ninspect.getsource(triple)")
    assert run.value == repr("def triple(x):\n    return 3 * x\n")


def test_a_function_of_the_cell_can_be_scripted(kernel):
    run = kernel.run(
        "%%meta\n@torch.jit.script\ndef more(x: torch.Tensor):\n    return x + 1\n"
        "more(torch.ones(2)).device.type"
    )
    assert run.value == "'meta'"


# Interrupts: sent when the cell says that it has started.


@pytest.mark.parametrize(
    "wait",
    [
        "import time; time.sleep(60)",
        "while True: pass",
        "while True: torch.ones(2) + 1",
    ],
)
def test_an_interrupted_cell_ends_with_keyboard_interrupt(kernel, wait):
    run = kernel.run_until_interrupted(f"%%meta\nprint('started')\n{wait}")
    assert run.content["ename"] == "KeyboardInterrupt"
    assert kernel.torch_state() == CLEAN


def test_an_interrupt_is_shown_once_at_the_line_of_the_cell(kernel):
    run = kernel.run_until_interrupted("%%meta\nprint('started')\nwhile True: pass")
    assert run.marked_lines == [3]
    assert "meta_magic/" not in run.traceback


def test_an_interrupted_cell_keeps_its_trace(kernel):
    kernel.run_until_interrupted(
        "%%meta\nx = torch.ones(2)\nprint('started')\nwhile True: pass"
    )
    assert kernel.run("[op.op for op in _meta.ops], _meta.error").value == (
        "(['aten.ones.default'], 'KeyboardInterrupt: ')"
    )


def test_an_interrupt_ends_an_awaiting_cell_as_it_ends_a_plain_one(kernel):
    # Whether it does at all depends on ipykernel: 6.17 interrupts no await.
    cell = "print('started')\nawait asyncio.sleep(3)"
    plain = kernel.run_until_interrupted(cell)
    ours = kernel.run_until_interrupted(f"%%meta\n{cell}")
    assert ours.content["status"] == plain.content["status"]
    assert ours.content.get("ename") == plain.content.get("ename")
    assert kernel.torch_state() == CLEAN


def test_a_cell_runs_after_an_interrupted_one(kernel):
    kernel.run_until_interrupted("%%meta\nprint('started')\nwhile True: pass")
    assert kernel.run("%%meta\ntorch.ones(2).device.type").value == "'meta'"


# The progress line; the cell waits for a file, which is made when the line is seen.

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


# Awaiting cells.


def test_an_awaiting_cell_has_a_value(kernel):
    run = kernel.run("%%meta\nawait asyncio.sleep(0)\ntorch.ones(1).device.type")
    assert run.value == "'meta'"


def test_a_background_task_sees_the_cpu_while_a_cell_awaits(kernel):
    kernel.run(
        "seen = []\n"
        "async def look(ready, seen_enough):\n"
        "    await ready.wait()\n"
        "    seen.append(torch.ones(1).device.type)\n"
        "    seen_enough.set()\n"
        "ready, seen_enough = asyncio.Event(), asyncio.Event()\n"
        "task = asyncio.ensure_future(look(ready, seen_enough))"
    )
    run = kernel.run("%%meta\nready.set()\nawait seen_enough.wait()\nseen")
    assert run.value == "['cpu']"


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
        ("", {"depth": 2, "height": 420, "hide": ["parameters"]}),
        ("--depth 4", {"depth": 4, "height": 420, "hide": ["parameters"]}),
        ("--height 300 --parameters", {"depth": 2, "height": 300, "hide": []}),
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
        kernel.run("%config MetaMagics.depth = 2")
    assert read_settings(run)["depth"] == 5


def read_settings(run):
    """Return the settings in the report that a cell left."""
    html = run.outputs[0]["data"]["text/html"]
    start = re.search(r'start_saved\("[^"]+", "[^"]+", (\{.*?\})\);', html)
    return json.loads(start[1])
