"""Modes, torch's state, and what is noted of both."""

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


class CountOps(TorchDispatchMode):
    """Counts the operators that it sees."""

    n_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n_ops += 1
        return func(*args, **(kwargs or {}))


class WatchCalls(TorchFunctionMode):
    """Names the functions that it sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def notes(shell, kind):
    return [note.text for note in shell.user_ns["_meta"].notes if note.kind == kind]


def dispatch_flags():
    return {
        name: value
        for name, value in vars(python_dispatch).items()
        if isinstance(value, bool)
    }


def torch_state():
    return (
        python_dispatch._get_current_dispatch_mode_stack(),
        _get_current_function_mode_stack(),
        torch.get_default_device(),
        dispatch_flags(),
    )
