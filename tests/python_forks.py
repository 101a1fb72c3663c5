"""Pythons that start in a moment: forks of one process, which has imported torch.

A kernel, a rank of torchrun and a child of ``meta-magic check`` each need two seconds
of a core to import torch and the package. :func:`serve_pythons` writes a program
``python`` that asks one process for a fork, which runs what the program was given. The
program passes signals on to the fork, and ends as the fork ends; if it is killed, so is
the fork. Two tests need a real Python: of what is not imported, and of memory limits.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

IMPORTED = (
    *("anywidget", "ipykernel.zmqshell", "pandas", "sympy", "meta_magic.magic.magics"),
    *("meta_magic.magic.extension", "meta_magic.session.recording"),
    "meta_magic.check.block_run",
    *("torch.distributed.run", "torch.distributed.fsdp"),
    "torch.distributed.tensor.parallel",
)
"""What the first cells of a kernel, and scripts of several ranks, import."""


@contextmanager
def serve_pythons(folder):
    """Start the process that is forked; yield the path of the program."""
    python, address = folder / "python", str(folder / "socket")
    ask = f'exec {sys.executable} -SE {__file__} {address} "$@"'
    python.write_text(f"#!/bin/sh\n{ask}\n")
    python.chmod(0o755)
    command, pipe = [sys.executable, __file__, address], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as server:
        server.stdout.readline()  # it listens
        yield str(python)
        server.stdin.close()


def ask(address, *arguments):
    """Ask for a fork, stand for it until it ends, and end in the same way."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        request = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(server, [len(request).to_bytes(8)], [0, 1, 2])
        server.sendall(request)
        fork = int.from_bytes(server.recv(8))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.killpg(fork, number))
        code = int.from_bytes(server.recv(8), signed=True)
    if code < 0:
        with suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class Server:
    """Forks this process for each that asks; ends when its standard input ends."""

    def __init__(self, address):
        self.asked = None
        """In a fork, what it was asked to run: arguments, folder, environment."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(100)
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(self.listener, selectors.EVENT_READ, self.fork)
        self.waiting.register(sys.stdin, selectors.EVENT_READ, lambda: os._exit(0))

    def fork(self):
        asker, _ = self.listener.accept()
        head, files, *_ = socket.recv_fds(asker, 8, 3)
        request = asker.recv(int.from_bytes(head), socket.MSG_WAITALL)
        fork = os.fork()
        if fork == 0:
            os.setsid()
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.closerange(3, 1 << 12)
            self.asked = json.loads(request)
            return
        asker.sendall(fork.to_bytes(8))
        for file in files:
            os.close(file)
        ended = os.pidfd_open(fork)

        def end():
            """Kill the fork if it still runs, and tell its exit code."""
            for one in (asker, ended):
                self.waiting.unregister(one)
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PIDFD, ended, how) is None:
                os.killpg(fork, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            os.close(ended)
            with asker, suppress(OSError):  # the program was killed
                asker.sendall(code.to_bytes(8, signed=True))

        self.waiting.register(asker, selectors.EVENT_READ, end)
        self.waiting.register(ended, selectors.EVENT_READ, end)

    def run(self):
        while self.asked is None:
            key, _ = self.waiting.select()[0]
            key.data()


def run_as_python(arguments):
    """Do what ``python`` does with the arguments."""
    arguments, first = [*arguments], ""
    while arguments[0] in ("-P", "-u", "-W"):
        option = arguments.pop(0)
        if option == "-P":
            first = None
        elif option == "-W":
            warnings.simplefilter(arguments.pop(0))
    kind, main = arguments[0], types.ModuleType("__main__")
    if kind in ("-m", "-c"):
        name = arguments.pop(1)
        code = name
    else:
        main.__file__, first = kind, str(Path(kind).parent)
        code = compile(Path(kind).read_bytes(), kind, "exec")
    sys.argv = arguments
    if first is not None:
        sys.path.insert(0, first or (str(Path.cwd()) if kind == "-m" else ""))
    if kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main
        exec(code, vars(main))


def run_to_end(arguments, folder, environment):
    """Run in this fork what was asked for; end as a Python that has run it ends."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop("VIRTUAL_ENV", None)  # IPython looks for the program there
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115  for good
        for number, mode in enumerate("rww")
    )
    sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    status = 1
    try:
        run_as_python(arguments)
        status = 0
    except SystemExit as ended:
        status = ended.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
        status = status if isinstance(status, int) else int(status is not None)
    except BaseException as error:
        traceback.print_exception(
            error.with_traceback(error.__traceback__.tb_next.tb_next)
        )
        sys.last_value = error
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def serve(address):
    """Import what takes long, and serve; each fork ends in here, too."""
    del sys.path[0]  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    sys.executable = str(Path(address).with_name("python"))
    gc.freeze()
    server = Server(address)
    print(flush=True)
    server.run()
    run_to_end(*server.asked)


if __name__ == "__main__":
    (ask if sys.argv[2:] else serve)(*sys.argv[1:])
