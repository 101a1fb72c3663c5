"""Whenever a cell is interrupted, torch and the interrupt handler are as before."""

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from meta_magic.magic.awaiting import CellParts
from tests.integration.session.torch_states import torch_state

REPOSITORY = Path(__file__).parents[3]


def test_an_interrupt_ends_the_cell_and_restores_torch(shell):
    before = torch_state()
    shell.user_ns["interrupt"] = lambda: os.kill(os.getpid(), signal.SIGINT)
    result = shell.run_cell("%%meta\ntorch.ones(2)\ninterrupt()\nwhile True: pass")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert torch_state() == before


def test_an_interrupt_handler_that_the_cell_sets_stays(shell):
    before = signal.getsignal(signal.SIGINT)
    try:
        cell = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"
        shell.run_cell(f"%%meta\n{cell}")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


WAIT = """%%meta -q
import asyncio, signal
asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
{}"""


def test_an_interrupt_while_a_cell_awaits_closes_what_the_cell_opened(shell):
    handler = signal.getsignal(signal.SIGINT)
    before = torch_state()
    cell = WAIT.format("with torch.no_grad():\n    await asyncio.sleep(60)")
    result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert torch.is_grad_enabled()
    assert torch_state() == before
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_while_a_cell_awaits_is_raised_in_the_cell(shell):
    shell.run_cell(
        WAIT.format(
            "try:\n    await asyncio.sleep(60)\nexcept KeyboardInterrupt:\n"
            "    y = torch.ones(2) + 1\nawait asyncio.sleep(0)\ny + 1"
        )
    )
    assert [op.op for op in shell.user_ns["_meta"].ops] == [
        "aten.ones.default", "aten.add.Tensor", "aten.add.Tensor"
    ]  # fmt: skip


def test_a_cell_that_is_interrupted_before_its_first_part_is_closed():
    async def run_cell():
        pass

    def run_part(_):
        raise KeyboardInterrupt

    coroutine = run_cell()
    with pytest.raises(KeyboardInterrupt):
        CellParts(run_part).drive(coroutine).send(None)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def run_in_python(name, *arguments):
    """Run a program of this folder in a process of its own."""
    path = Path(__file__).with_name(name)
    code = (
        f"import runpy, sys; sys.argv[1:] = {arguments}; "
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.fixture
def run_program(forked_pythons):
    """Run a program of this folder in a fork of this process."""
    return run_in_python


@pytest.mark.parametrize(
    ("kind", "n_interrupts"),
    [("guard", 100), ("record", 50), ("magic", 30), ("all", 15)],
)
def test_a_storm_of_interrupts_leaves_nothing_behind(run_program, kind, n_interrupts):
    run = run_program("storm.py", kind, str(n_interrupts))
    assert run.stdout == "{}\n", run.stderr


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("record", 31),
        ("training", 809),
        ("loader", 211),
        ("attention", 601),
        ("arrays", 1201),
        ("materialize", 139),
        ("awaiting", 307),
    ],
)
def test_an_interrupt_at_any_call_leaves_nothing_behind_and_is_raised(
    run_program, kind, step
):
    run = run_program("every_call.py", kind, str(step))
    assert run.stdout.endswith(" {}\n"), run.stdout + run.stderr


@pytest.mark.kernel
@pytest.mark.usefixtures("forked_kernels")
def test_interrupts_of_a_kernel_leave_nothing_behind_and_are_raised():
    run = run_in_python("kernel_storm.py", "12")  # a fork has this process's event loop
    assert run.stdout == "12 {}\n", run.stderr


def test_no_interrupt_is_lost_in_a_loop_of_operators(run_program):
    run = run_program("storm.py", "operators", "20")
    assert run.stdout == "{}\n", run.stderr


@pytest.mark.parametrize("options", [("12",), ("40", "recording/rows")])
def test_a_cell_that_swallows_interrupts_of_replays_has_the_values_of_the_cpu(
    run_program, options
):
    run = run_program("value_storm.py", *options)
    assert run.stdout.endswith(" {}\n"), run.stdout + run.stderr
    assert not run.stdout.startswith("0 ")
