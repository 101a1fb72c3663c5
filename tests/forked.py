"""Pythons of the package that start in a moment, as they find torch imported.

``meta-magic check`` and ``record_ranks`` start Pythons, and each imports torch, which
takes more than a second. In tests a fork of this process, which has imported what
they need, runs the same code instead. Two things need a real one: a limit of memory,
and an interrupt, which waits while a frame of the package below it may not be left.
"""

import atexit
import faulthandler
import gc
import os
import subprocess
import sys
import threading
import traceback
import warnings

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from IPython.core import async_helpers

import meta_magic.check.block_run
import meta_magic.check.notebook_run  # noqa: F401


class ForkedPython(subprocess.Popen):
    """``python -P ... -c CODE`` in a fork of this process; all else as ever."""

    def _execute_child(self, args, *others):
        if args[:2] != [sys.executable, "-P"]:
            super()._execute_child(args, *others)
            return
        folder, env, pipes = others[4], others[5], others[9:15]
        self.pid = os.fork()
        if self.pid == 0:
            run(args[-1], others[-2], folder, env, (pipes[0], pipes[3], pipes[5]))
        self._child_created = True
        self._close_pipe_fds(*pipes)


def leave_parent(is_session, folder, env, standard):
    """Let go of what pytest and earlier tests left in this process."""
    if is_session:
        os.setsid()
    for number, pipe in enumerate(standard):
        if pipe != -1:
            os.dup2(pipe, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115  for good
        for number, mode in enumerate("rww")
    )
    os.chdir(folder or ".")
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    vars(sys).pop("last_value", None)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    faulthandler.disable()
    atexit._clear()
    async_helpers._asyncio_event_loop = None
    torch.set_num_threads(1)
    gc.freeze()


def run(code, *settings):
    """Run code, and end this process as a Python ends that has run it."""
    status = 1
    try:
        leave_parent(*settings)
        exec(code, {"__name__": "__main__"})
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
