"""Kernels that start in a moment: forks of one process, which has imported torch.

A kernel needs two seconds of a core to import torch and the package. Where
``JUPYTER_PATH`` begins with the folder of :func:`serve_kernels`, the kernel ``python3``
is this file instead. It asks the process for a fork that runs ``ipykernel``, passes
signals on to the fork, and ends when the fork ends; if it is killed, so is the fork.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

IMPORTED = (
    *("anywidget", "ipykernel.zmqshell", "pandas", "sympy", "meta_magic.magic.magics"),
    *("meta_magic.magic.extension", "meta_magic.session.recording"),
)
"""What the first cells of a kernel import."""


@contextmanager
def serve_kernels(folder):
    """Start the process that is forked; what is in the folder describes its kernel."""
    spec, address = folder / "kernels" / "python3", str(folder / "socket")
    spec.mkdir(parents=True)
    argv = [sys.executable, "-SE", __file__, address, "-f", "{connection_file}"]
    named = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(named))
    command, pipe = [sys.executable, __file__, address], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as server:
        server.stdout.readline()  # it listens
        yield
        server.stdin.close()


def ask(address, *arguments):
    """Ask for a fork, stand for it until it ends, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        request = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(server, [len(request).to_bytes(8)], [0, 1, 2])
        server.sendall(request)
        fork = int.from_bytes(server.recv(8))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.killpg(fork, number))
        return int.from_bytes(server.recv(8))


class Server:
    """Forks this process for each that asks; ends when its standard input ends."""

    def __init__(self, address):
        self.asked = None
        """In a fork, what it was asked to run: arguments, folder, environment."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen()
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
            if (
                os.waitid(os.P_PIDFD, ended, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                is None
            ):
                os.killpg(fork, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            os.close(ended)
            with asker, suppress(OSError):  # it was killed
                asker.sendall((code % 256).to_bytes(8))

        self.waiting.register(asker, selectors.EVENT_READ, end)
        self.waiting.register(ended, selectors.EVENT_READ, end)

    def run(self):
        while self.asked is None:
            key, _ = self.waiting.select()[0]
            key.data()


def run_kernel(arguments, folder, environment):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(argv=arguments)


def main(address):
    """Import what the first cell imports, and serve."""
    del sys.path[0]  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    server = Server(address)
    print(flush=True)
    server.run()
    try:
        run_kernel(*server.asked)
    finally:
        os._exit(0)  # which the lines are counted by


if __name__ == "__main__":
    sys.exit(ask(*sys.argv[1:]) if sys.argv[2:] else main(*sys.argv[1:]))
