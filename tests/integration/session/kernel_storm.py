"""Interrupt the cells of a real kernel at random moments.

``python kernel_storm.py 300`` prints ``300 {}`` if each interrupt was raised, and left
nothing behind; else what was met, and how often. ``CELLS`` are taken in turn.
"""

import collections
import random
import sys
import tempfile
import threading
from pathlib import Path

from tests.integration.kernels import RunningKernel

START = """import sys
from meta_magic import materialize
from torch.utils.data import DataLoader, TensorDataset
from tests.integration.session.every_call import probe
def look():
    torch.manual_seed(0)
    return probe()
def note_dropped(unraisable):
    where = unraisable.object
    name = getattr(where, "__qualname__", where)
    dropped.append(f"{getattr(where, '__module__', None)}.{name}")
dropped, sys.unraisablehook = [], note_dropped
shell = get_ipython()
look(), look()"""

TRAINING = """%%meta -q
print("started", flush=True)
while True:
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(4, 2)), shuffle=True):
        with torch.autocast("cpu"):
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
        loss.item()"""

ENTRIES = """print("started", flush=True)
while True:
    shell.run_cell_magic("meta", "-q", "model = nn.BatchNorm1d(3)")"""

MATERIALIZE = """print("started", flush=True)
while True:
    shell.run_cell_magic("meta", "-q", "model = nn.BatchNorm1d(3)")
    materialize(model)"""

AWAITING = """%%meta -q
print("started", flush=True)
while True:
    with torch.no_grad():
        await asyncio.sleep(0)
        torch.ones(2) + 1"""

CELLS = {
    "training": TRAINING,
    "entries": ENTRIES,
    "materialize": MATERIALIZE,
    "awaiting": AWAITING,
}
RAISED = {"KeyboardInterrupt", "CancelledError"}
"""The kernel cancels a cell that awaits."""

SECONDS, SECONDS_LOST = 0.3, 20


def interrupt(kernel, cell):
    """Run a cell, interrupt it once, and return what was raised."""
    was_lost = threading.Event()
    timers = []

    def again():
        was_lost.set()
        kernel.manager.interrupt_kernel()

    def on_message(kind, content):
        if kind == "stream" and "started" in content["text"] and not timers:
            once = kernel.manager.interrupt_kernel
            timers.append(threading.Timer(random.random() * SECONDS, once))
            timers.append(threading.Timer(SECONDS_LOST, again))
            for timer in timers:
                timer.start()

    run = kernel.run(cell, on_message)
    for timer in timers:
        timer.cancel()
    return "lost" if was_lost.is_set() else run.content.get("ename")


def main(n_interrupts):
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        kernel = RunningKernel(Path(directory))
        assert kernel.run(START).status == "ok"
        clean = kernel.run("look()", store_history=False).value
        kinds = list(CELLS)
        for i in range(n_interrupts):
            kind = kinds[i % len(kinds)]
            raised = interrupt(kernel, CELLS[kind])
            if raised not in RAISED:
                dropped = kernel.run("dropped", store_history=False).value
                found[f"{kind}: {raised}, dropped in {dropped}"] += 1
            left = kernel.run("look()", store_history=False).value
            if left != clean:
                found[f"{kind}: {left}"] += 1
        kernel.stop()
    print(n_interrupts, dict(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
