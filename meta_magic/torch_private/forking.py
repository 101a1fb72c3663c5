"""Fork a process so that autograd works in the child, where there is a GPU, too."""

import ctypes
import os

import torch


def fork() -> int:
    """Fork this process, as ``os.fork`` does; backward passes on meta run in the child.

    Where torch sees a GPU, the first backward pass of a process starts a thread for it,
    and torch refuses all backward passes in children that are forked later, by a
    handler of the C library. On meta no such thread is needed, so the child is forked
    without handlers, but for Python's own.

    Returns:
        The child's number, and 0 in the child.

    Raises:
        OSError: There can be no more processes.

    Source:
        ``track_bad_autograd_forks`` in ``torch/csrc/autograd/engine.cpp``.
    """
    if not torch.cuda.device_count():
        return os.fork()
    libc = ctypes.PyDLL(None, use_errno=True)
    fork_without_handlers = getattr(libc, "_Fork", os.fork)
    if fork_without_handlers is os.fork:
        return os.fork()
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    number: int = fork_without_handlers()
    if number:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    if number < 0:
        raise OSError(ctypes.get_errno(), "no child process could be forked")
    return number
