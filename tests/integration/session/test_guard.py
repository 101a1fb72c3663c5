"""Whatever a ``%%meta`` cell does, torch and the interrupt handler are as before."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

REPOSITORY = Path(__file__).parents[3]

UNBALANCED = {
    "a dispatch mode left open": "CountOps().__enter__()",
    "a function mode left open": "WatchCalls().__enter__()",
    "a device left open": "torch.device('cpu').__enter__()",
    "a fake mode left open": "from torch._subclasses import fake_tensor\n"
    "fake_tensor.FakeTensorMode().__enter__()",
    "the default device set to cpu": "torch.set_default_device('cpu')",
    "the default device set to meta": "torch.set_default_device('meta')",
    "a mode left open by an error": "CountOps().__enter__()\n1 / 0",
    "a function mode popped": "from torch.overrides import _pop_mode\n_pop_mode()",
    "a dispatch mode popped": "from torch.utils._python_dispatch import _pop_mode\n"
    "_pop_mode()",
    "two modes left open": "CountOps().__enter__()\nWatchCalls().__enter__()",
}


class CountOps(TorchDispatchMode):
    """Counts the operators that it sees."""

    n_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n_ops += 1
        return func(*args, **(kwargs or {}))


class WatchCalls(TorchFunctionMode):
    """Names the functions that it sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def shell(shell):
    shell.user_ns.update(CountOps=CountOps, WatchCalls=WatchCalls)
    return shell


def notes(shell, kind):
    return [note.text for note in shell.user_ns["_meta"].notes if note.kind == kind]


def dispatch_flags():
    return {
        name: value
        for name, value in vars(python_dispatch).items()
        if isinstance(value, bool)
    }


def torch_state():
    return (
        python_dispatch._get_current_dispatch_mode_stack(),
        _get_current_function_mode_stack(),
        torch.get_default_device(),
        dispatch_flags(),
    )


# Whatever ends the cell.


@pytest.mark.parametrize(
    "ending", ["pass", "1 / 0", "raise SystemExit(2)", "raise KeyboardInterrupt",
               "raise GeneratorExit", "import asyncio\nawait asyncio.sleep(0)\n1 / 0"],
)  # fmt: skip
def test_torch_is_restored_however_the_cell_ends(shell, ending):
    before = torch_state()
    shell.run_cell(f"%%meta\ntorch.ones(2)\n{ending}")
    assert torch_state() == before


def test_an_interrupt_ends_the_cell_and_restores_torch(shell):
    before = torch_state()
    shell.user_ns["interrupt"] = lambda: os.kill(os.getpid(), signal.SIGINT)
    result = shell.run_cell("%%meta\ntorch.ones(2)\ninterrupt()\nwhile True: pass")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert torch_state() == before


def test_the_interrupt_handler_is_restored(shell):
    before = signal.getsignal(signal.SIGINT)
    shell.run_cell("%%meta\n1 / 0")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_handler_that_the_cell_sets_stays(shell):
    before = signal.getsignal(signal.SIGINT)
    try:
        cell = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"
        shell.run_cell(f"%%meta\n{cell}")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def run_program(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "n_interrupts"), [("guard", 1000), ("record", 300), ("magic", 300)]
)
def test_a_storm_of_interrupts_leaves_nothing_behind(kind, n_interrupts):
    program = Path(__file__).with_name("storm.py")
    run = run_program(str(program), kind, str(n_interrupts))
    assert run.stdout == "{}\n", run.stderr


def test_no_interrupt_is_lost_in_a_loop_of_operators():
    run = run_program(str(Path(__file__).with_name("storm.py")), "operators", "40")
    assert run.stdout == "{}\n", run.stderr


# Whatever the cell leaves open.


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_what_the_cell_left_open_is_closed(shell, action):
    before = torch_state()
    shell.run_cell(f"%%meta\n{action}")
    assert torch_state() == before


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_the_user_is_told_what_was_put_right(shell, action):
    shell.run_cell(f"%%meta\n{action}")
    assert notes(shell, "state")


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_the_default_device_can_be_reset_afterwards(shell, action):
    shell.run_cell(f"%%meta\n{action}")
    torch.set_default_device(None)
    assert torch.get_default_device().type == "cpu"


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_the_next_cell_runs_on_meta(shell, action):
    shell.run_cell(f"%%meta\n{action}")
    assert shell.run_cell("%%meta\ntorch.ones(1).is_meta").result is True


def test_a_balanced_cell_has_nothing_put_right(shell):
    shell.run_cell("%%meta\nwith torch.device('cpu'), CountOps():\n    torch.ones(2)")
    assert notes(shell, "state") == []


def test_a_default_device_set_in_the_cell_is_undone_by_name(shell):
    shell.run_cell("%%meta\ntorch.set_default_device('cpu')")
    assert notes(shell, "state") == [
        "torch.set_default_device(cpu) was undone after the cell"
    ]


def test_a_mode_left_open_is_named(shell):
    shell.run_cell("%%meta\nCountOps().__enter__()")
    assert any("CountOps" in text for text in notes(shell, "state"))


def test_what_a_cell_sets_on_purpose_stays(shell):
    shell.run_cell("%%meta\ntorch.set_default_dtype(torch.float64)")
    try:
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# Whatever was there before.


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_from_before_survives(shell, device):
    torch.set_default_device(device)
    try:
        before = torch_state()
        assert shell.run_cell("%%meta\ntorch.ones(1).is_meta").result is True
        assert torch_state() == before
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("action", UNBALANCED.values(), ids=UNBALANCED.keys())
def test_modes_from_before_survive_whatever_is_left_open(shell, action):
    with CountOps(), WatchCalls():
        before = torch_state()
        shell.run_cell(f"%%meta\n{action}")
        assert torch_state() == before


def test_modes_from_before_see_the_operators_of_the_cell(shell):
    shell.run_cell("%%meta -q\ntorch.ones(2) + 1")  # served from the cache, if anything
    with CountOps() as ops, WatchCalls() as calls:
        shell.run_cell("%%meta -q\nx = torch.ones(2) + 1")
    assert ops.n_ops == 2
    assert [name for name in calls.names if name in {"ones", "add"}] == ["ones", "add"]


def test_modes_from_before_see_nothing_but_the_calls_of_the_cell(shell):
    with CountOps(), WatchCalls() as calls:
        shell.run_cell("%%meta -q\nx = torch.ones(2) + 1")
    assert calls.names == ["ones", "add"]


def test_the_random_numbers_after_a_cell_are_as_without_it(shell):
    before = torch.get_rng_state()
    shell.run_cell(
        "%%meta\nmodel = nn.Sequential(nn.Linear(4, 4), nn.Dropout())\n"
        "model(torch.randn(3, 4)).sum().backward()"
    )
    assert torch.equal(torch.get_rng_state(), before)


# Other threads and tasks.

WORK = "import torch\ndef work(): return torch.ones(1).device.type\n"


@pytest.mark.parametrize(
    "cell",
    [
        (
            "from threading import Thread\nseen = []\n"
            "thread = Thread(target=lambda: seen.append(work()), name='worker')\n"
            "thread.start()\nthread.join()\nseen[0]"
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(1, thread_name_prefix='worker') as pool:\n"
            "    seen = pool.submit(work).result()\nseen"
        ),
        "import asyncio\nawait asyncio.to_thread(work)",
    ],
    ids=["thread", "executor", "to_thread"],
)
def test_a_thread_started_in_the_cell_sees_the_cpu_and_is_named(shell, cell):
    shell.run_cell(WORK)
    assert shell.run_cell(f"%%meta\n{cell}").result == "cpu"
    (note,) = notes(shell, "thread")
    assert "'worker" in note or "'asyncio_" in note


def test_a_module_called_in_an_older_thread_is_noted(shell):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, thread_name_prefix="older") as pool:
        pool.submit(threading.get_ident).result()
        shell.user_ns.update(pool=pool, real=torch.nn.Linear(2, 3))
        shell.run_cell("%%meta\npool.submit(lambda: real(torch.ones(2))).result()")
    (note,) = notes(shell, "thread")
    assert "'older_0'" in note


def test_a_thread_that_outlives_the_cell_sees_the_cpu(shell):
    shell.run_cell(WORK)
    shell.run_cell(
        "%%meta\nimport threading\ngo, seen = threading.Event(), []\n"
        "def later():\n    go.wait()\n    seen.append(work())\n"
        "thread = threading.Thread(target=later)\nthread.start()"
    )
    result = shell.run_cell("go.set()\nthread.join()\nseen").result
    assert result == ["cpu"]


def test_a_background_task_sees_the_cpu_while_the_cell_awaits(shell):
    shell.run_cell(
        "import asyncio\nseen, ready, enough = [], asyncio.Event(), asyncio.Event()\n"
        "async def look():\n    await ready.wait()\n"
        "    seen.append(torch.ones(1).device.type)\n    enough.set()\n"
        "task = asyncio.ensure_future(look())\nawait asyncio.sleep(0)"
    )
    shell.run_cell("%%meta\nready.set()\nawait enough.wait()")
    assert shell.user_ns["seen"] == ["cpu"]


def test_a_task_of_the_cell_sees_the_cpu_in_its_own_steps(shell):
    shell.run_cell(WORK)
    shell.run_cell("import asyncio\nasync def step(): return work()")
    cell = "%%meta\nawait asyncio.create_task(step())"
    assert shell.run_cell(cell).result == "cpu"


def test_a_function_of_the_cell_called_later_sees_the_cpu(shell):
    shell.run_cell("%%meta\ndef make(): return torch.ones(1).device.type")
    assert shell.run_cell("make()").result == "cpu"
