"""Interrupts of a ``%%meta`` cell: sent when the cell says that it has started."""

import pytest

from tests.integration.kernels import CLEAN

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]


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
