"""Other threads and tasks see the CPU while a ``%%meta`` cell runs."""

import threading

import pytest
import torch

from tests.integration.session.torch_states import notes

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


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("pool.submit(work).result()", "cpu"),
        ("list(pool.map(lambda _: work(), [1]))", ["cpu"]),
        ("await asyncio.get_running_loop().run_in_executor(pool, work)", "cpu"),
    ],
    ids=["submit", "map", "run_in_executor"],
)
def test_an_older_thread_that_is_given_work_is_named(shell, cell, value):
    shell.run_cell(
        f"{WORK}import asyncio\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1, thread_name_prefix='older')\n"
        "pool.submit(work).result()"
    )
    assert shell.run_cell(f"%%meta\n{cell}").result == value
    (note,) = notes(shell, "thread")
    assert "'older_0'" in note


@pytest.mark.parametrize(
    "cell",
    [
        "async with asyncio.TaskGroup() as group:\n    group.create_task(step())",
        "await asyncio.wait_for(step(), 1)",
        "await asyncio.sleep(0)\nawait asyncio.create_task(step())",
    ],
    ids=["TaskGroup", "wait_for", "after an await"],
)
def test_a_task_of_the_cell_is_named(shell, cell):
    shell.run_cell(f"{WORK}import asyncio\nasync def step(): work()")
    shell.run_cell(f"%%meta\n{cell}")
    (note,) = notes(shell, "thread")
    assert "'step'" in note


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
