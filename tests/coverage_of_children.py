"""Plugin of coverage: the lines that run in forked children are counted, too.

A child of the package ends by SIGKILL, or may write no file, or both. So it gets a
file in memory when it is forked, and writes there which lines ran when it ends, or
is about to be killed. :func:`gather` then makes coverage's own data of these files.
"""

import math
import mmap
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from coverage import Coverage, CoverageData

FOLDER = "META_MAGIC_COVERAGE_OF_CHILDREN"
NBYTES = 1 << 24
"""Bytes of a child's file at most; those that are not written take no space."""

kill, leave, add_hook = os.kill, os._exit, sys.addaudithook


def coverage_init(registry, options):
    """Count the children of a process whose lines are counted."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="coverage")
    if os.kill is kill:
        os.kill, os._exit = save_and_kill, save_and_leave
        sys.addaudithook = add_traced_hook
        os.register_at_fork(after_in_child=Child.begin)


class Child:
    """What counts the lines of this process, which was forked."""

    current = None

    def __init__(self, above):
        above._auto_save = False
        above.stop()
        config = ":data:" + above.config.serialize()
        self.coverage = Coverage(data_file=None, config_file=config)
        number, _ = tempfile.mkstemp(dir=os.environ[FOLDER])
        os.truncate(number, NBYTES)
        self.file = mmap.mmap(number, NBYTES)
        os.close(number)
        self.coverage.start()
        signal.signal(signal.SIGTERM, lambda *_: save_and_leave(1))
        # To count takes time, of which the package gives its children little.
        if children := sys.modules.get("meta_magic.children"):
            children.ceil = lambda seconds: math.ceil(4 * seconds)

    @classmethod
    def begin(cls):
        with suppress(Exception):
            cls.current = (above := Coverage.current()) and cls(above)

    def save(self):
        self.coverage.stop()
        data = self.coverage.get_data()
        arcs = {name: data.arcs(name) for name in data.measured_files()}
        self.file.write(pickle.dumps(arcs))


def save():
    """Save which lines ran in this process, which is about to end."""
    child, Child.current = Child.current, None
    with suppress(BaseException):  # whatever it is, the process must end
        if child:
            child.save()
        elif counted := Coverage.current():
            counted.save()


def save_and_leave(code):
    save()
    leave(code)


def save_and_kill(number, name, /):
    """Let the children of the package save before they are killed.

    Only the signals of the package itself: a sandbox refuses all others, by the file
    of the caller.
    """
    caller = sys._getframe(1).f_code.co_filename
    if name != signal.SIGKILL or not caller.endswith("meta_magic/children.py"):
        return kill(number, name)
    if number == os.getpid():
        save_and_leave(1)
    process = os.pidfd_open(number)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    wait_for_end(number)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    return os.close(process)


def add_traced_hook(hook):
    hook.__cantrace__ = True
    add_hook(hook)


def wait_for_end(number):
    end = time.monotonic() + 2
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while time.monotonic() < end and os.waitid(os.P_PID, number, how) is None:
        time.sleep(0.002)


def gather():
    """Add what all children saved to the data that coverage combines."""
    data = CoverageData(Coverage.current().config.data_file, suffix="children")
    for path in Path(os.environ[FOLDER]).iterdir():
        with path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
            data.add_arcs(pickle.load(file))
    shutil.rmtree(os.environ[FOLDER])
