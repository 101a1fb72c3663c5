"""Fork a process so that autograd works in the child, where there is a GPU, too."""

import ctypes
import os

from meta_magic.torch_private.snapshot import count_gpus


def fork() -> int:
    """Fork this process, as ``os.fork`` does; backward passes on meta run in the child.

    Where torch sees a GPU, the first backward pass of a process starts a thread for it,
    and torch refuses all backward passes in children that are forked later, by a
    handler of the C library. On meta no such thread is needed, so the child is forked
    without handlers, but for Python's own.

    Source: ``track_bad_autograd_forks`` in ``torch/csrc/autograd/engine.cpp``.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    if not (count_gpus() and hasattr(libc, "_Fork")):
        return os.fork()
    python.PyOS_BeforeFork()
    number: int = libc._Fork()
    if number:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    if number < 0:
        raise OSError(ctypes.get_errno(), "no child process could be forked")
    return number
