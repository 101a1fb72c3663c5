"""Errors of a ``%%meta`` cell in a real kernel: status, count, lines, frames."""

import pytest

from tests.integration.kernels import CLEAN

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]


@pytest.mark.parametrize("source", ["%%meta\n1 / 0", "%%meta -q\n1 / 0", "%meta 1 / 0"])
def test_a_failing_cell_fails_the_request_with_one_error(kernel, source):
    run = kernel.run(source)
    assert run.content["status"] == "error"
    assert [error["ename"] for error in run.errors] == ["ZeroDivisionError"]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n\n%%meta\n1 / 0", 4),
        ("%%meta\nawait asyncio.sleep(0)\n1 / 0", 3),
        ("%%meta\n\n1 / 0\nawait asyncio.sleep(0)", 3),
        ("%%meta\n%%meta\n1 / 0", 3),
    ],
)
def test_the_arrow_points_at_the_line_of_the_notebook(kernel, source, line):
    run = kernel.run(source)
    assert run.marked_lines == [line]
    assert "meta_magic/" not in run.traceback
    assert "run_cell_magic" not in run.traceback


def list_shown(run):
    kinds = {"display_data", "update_display_data", "error"}
    return [kind for kind, _ in run.messages if kind in kinds]


def test_below_an_error_of_python_is_the_report_alone(kernel):
    run = kernel.run("%%meta\ntorch.ones(2)\n1 / 0")
    assert list_shown(run) == ["error", "display_data", "display_data"]


def test_an_error_of_torch_does_not_wait_for_its_explanation(kernel):
    run = kernel.run("%%meta\nnn.Linear(2, 3)(torch.ones(5))")
    shown = list_shown(run)
    assert shown[0] == "display_data"
    assert shown[shown.index("error") + 1 :] == [
        *("update_display_data", "update_display_data", "display_data", "display_data")
    ]
    why = run.reports[0]["text/plain"].splitlines()
    assert why[0] == "Linear(2 -> 3) got (5,) at line 2"
    assert why[1].startswith("line 2: nn.Linear(2, 3)(torch.ones(5))")


def test_the_rule_is_shown_before_the_repairs_that_are_tried(kernel):
    run = kernel.run("%%meta\nnn.Linear(2, 3)(torch.ones(5))")
    kinds = {"display_data", "update_display_data"}
    texts = [
        content["data"].get("text/plain", "")
        for kind, content in run.messages
        if kind in kinds
    ]
    assert "must equal" in texts[1]
    assert "trying edits" in texts[1]
    assert "repairs that ran" not in texts[1]
    assert "repairs that ran" in texts[2]


def test_an_error_in_an_operator_shows_the_users_frame_alone(kernel):
    run = kernel.run("%%meta\nawait asyncio.sleep(0)\nnn.Linear(2, 3)(torch.ones(5))")
    assert run.marked_lines == [3]
    assert "frames of torch folded: %meta full shows all]" in run.traceback
    assert "meta_magic/" not in run.traceback
    assert "/torch/" not in run.traceback


def test_an_exception_group_fails_the_cell(kernel):
    run = kernel.run("%%meta\nraise ExceptionGroup('both', [ValueError(1)])")
    assert (run.content["status"], run.content["ename"]) == ("error", "ExceptionGroup")


def test_a_bad_option_is_one_line_and_no_traceback(kernel):
    run = kernel.run("%%meta --bogus\nran_anyway = 1")
    assert run.content["status"] == "error"
    assert run.stream("stderr") == (
        "UsageError: %%meta: unrecognized arguments: --bogus "
        "(%meta --help lists what there is)\n"
    )
    assert run.errors == []
    assert kernel.run("'ran_anyway' in globals()").value == "False"


# Interrupts of a ``%%meta`` cell: sent when the cell says that it has started


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


TASK = """
async def compute():
    print('started')
    {step}
await asyncio.gather(compute(), asyncio.sleep(60))
"""


@pytest.mark.parametrize(
    "cell",
    [
        "print('started')\nawait asyncio.sleep(60)",
        "await asyncio.sleep(0)\nprint('started')\nwhile True: pass",
        TASK.format(step="while True: torch.ones(2) + 1"),
        TASK.format(step="import time; time.sleep(60)"),
    ],
)
def test_an_interrupt_ends_a_cell_that_awaits(kernel, cell):
    # ipykernel 7.4 ends none of these without the magic.
    run = kernel.run_until_interrupted(f"%%meta\n{cell}")
    assert run.content["ename"] in {"KeyboardInterrupt", "CancelledError"}
    assert kernel.torch_state() == CLEAN
    assert kernel.run("await asyncio.sleep(0)\n1 + 1").value == "2"


# A cell runs again in a child of the kernel, of which the front end hears nothing


CELL = """
%%meta -q
B = 4
model = nn.Linear(B, 2)
print("ran")
display("shown")
kept = "before" if "again" in globals() else "first"
again = model(torch.ones(B, B))
again
"""

ASK = """
from meta_magic.trials.trial import ask_trial
def shapes(trace, variables):
    return [call.outputs[0].shape for call in trace.ops][-1], variables["kept"]
"""


@pytest.fixture(autouse=True, scope="module")
def names_for_trials(kernel):
    assert kernel.run(ASK).status == "ok"


def test_a_cell_is_recorded_again_and_says_nothing(kernel):
    assert kernel.run(CELL.strip()).status == "ok"
    asked = kernel.run('ask_trial(_meta, shapes, {"B": 9})')
    assert asked.value == "((9, 2), 'first')"
    assert asked.stream("stdout") == asked.stream("stderr") == ""
    assert [out for out in asked.outputs if "shown" in str(out)] == []
    assert kernel.run("B, again.shape").value == "(4, torch.Size([4, 2]))"


def test_a_child_that_asks_the_user_is_refused(kernel):
    kernel.run("%%meta -q\nn = 2\nif n > 2: input('more?')")
    asked = kernel.run("ask_trial(_meta, shapes, {'n': 3})")
    assert "it asks for input" in asked.traceback
