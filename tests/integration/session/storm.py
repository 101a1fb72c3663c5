"""Interrupt recordings at random moments, and count what is left behind.

``python storm.py guard 1000`` prints ``{}`` if no interrupt left a trace, else how
often each state was met. ``guard`` enters and leaves an empty block, ``record`` a
recorded one, ``magic`` runs a cell, ``operators`` many operators, ``all`` one of what
``every_call.py`` interrupts, by chance, but for the cell that awaits: a shell loses
those that land in it while it drives a loop, and ``kernel_storm.py`` has a kernel.
Interrupts that were raised where Python drops them, in a callback of ours, count too,
and those that nothing came of. Run it in a process of its own.
"""

import collections
import gc
import io
import os
import random
import signal
import sys
import threading
import time

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as python_dispatch

from meta_magic import record
from meta_magic.session.recording import Recording

TORCH_LOAD = torch.load
NEW_PARAMETER = torch.nn.Parameter.__new__
HOOKS = [
    table
    for name, table in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(table, dict)
]


def run_guard() -> None:
    Recording("storm").guard.run(lambda: None)


def run_record() -> None:
    with record():
        pass


def run_magic() -> None:
    InteractiveShell.instance().run_cell_magic("meta", "-q", "pass")


def run_operators() -> None:
    with record():
        for _ in range(10_000):
            torch.ones(2).add(1)


def run_all() -> None:
    from tests.integration.session import every_call

    names = every_call.RUNS.keys() - {"awaiting"}
    every_call.RUNS[random.choice(sorted(names))]()()


RUNS = {
    "guard": run_guard,
    "record": run_record,
    "magic": run_magic,
    "operators": run_operators,
    "all": run_all,
}
SECONDS, SECONDS_OF_ALL, SECONDS_LOST = 0.0012, 0.03, 60


def state() -> tuple[object, ...]:
    """Return all that a recording changes."""
    return (
        len(python_dispatch._get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        torch.get_default_device().type,
        python_dispatch._is_in_torch_dispatch_mode,
        torch.load is TORCH_LOAD,
        threading.getprofile(),
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        sum(map(len, HOOKS)),
        sum(name.endswith("AutogradMeta") for name in torch.library._impls),
        torch.nn.Parameter.__new__ is NEW_PARAMETER,
        gc.get_threshold(),
    )


class Killer(threading.Thread):
    """Sends one interrupt, up to some seconds after it is armed.

    Attributes:
        n_lost: Those after which it was not armed again, though much later.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.is_armed = threading.Event()
        self.n_lost = 0
        self._seconds = seconds

    def run(self) -> None:
        self.is_armed.wait()
        while True:
            self.is_armed.clear()
            time.sleep(random.random() * self._seconds)
            os.kill(os.getpid(), signal.SIGINT)
            while not self.is_armed.wait(SECONDS_LOST):
                self.n_lost += 1
                os.kill(os.getpid(), signal.SIGINT)


def storm(run, n_interrupts: int, seconds: float = SECONDS) -> dict[object, int]:
    """Run something until it is interrupted, many times over."""
    run()
    clean = state()
    found = collections.Counter()
    dropped = []

    def note_dropped(unraisable):
        if getattr(unraisable.object, "__module__", "").startswith("meta_magic"):
            dropped.append(unraisable.object.__qualname__)
        killer.is_armed.set()

    sys.unraisablehook = note_dropped
    killer = Killer(seconds)
    killer.start()
    for _ in range(n_interrupts):
        try:
            killer.is_armed.set()
            while True:
                run()
        except KeyboardInterrupt:
            pass
        for where in dropped:
            found[f"dropped in {where}"] += 1
        dropped.clear()
        if state() != clean:
            found[state()] += 1
    if killer.n_lost:
        found["lost"] = killer.n_lost
    return dict(found)


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)
    # A shell that starts it in the background has it ignore them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] in {"magic", "all"}:
        InteractiveShell.instance().run_line_magic("load_ext", "meta_magic")
        InteractiveShell.instance().user_ns["torch"] = torch
        sys.stdout = io.StringIO()  # the shell shows each error
    seconds = SECONDS_OF_ALL if sys.argv[1] == "all" else SECONDS
    found = storm(RUNS[sys.argv[1]], int(sys.argv[2]), seconds)
    print(found, file=sys.__stdout__, flush=True)
    os._exit(0)
