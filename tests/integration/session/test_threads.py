"""Other threads and tasks see the CPU while a ``%%meta`` cell runs."""

import pytest

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


def test_a_task_of_the_cell_is_on_meta_in_its_own_steps(shell):
    shell.run_cell(WORK)
    shell.run_cell("import asyncio\nasync def step(): return work()")
    cell = "%%meta\nawait asyncio.create_task(step())"
    assert shell.run_cell(cell).result == "meta"
