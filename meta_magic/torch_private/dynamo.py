"""Keep torch from importing dynamo where nothing is compiled.

Plain torch imports dynamo, which takes half a second, at the first call of some kernels
that are written in Python.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch import _compile, _refs
from torch._decomp import global_decomposition_table
from torch._refs.nn import functional

from meta_magic.torch_private.replaced import DYNAMO

# The attribute under which ``torch._compile`` keeps dynamo's version of a function.
ANSWER: Final = "__dynamo_disable"


class KernelsWithoutDynamo:
    """Context manager in which torch's kernels in Python do not import dynamo.

    At its first call such a kernel asks dynamo for a version of itself that dynamo does
    not compile. While dynamo is not imported, that version is the kernel itself.
    """

    def __init__(self) -> None:
        self._answered: list[tuple[dict[str, Any], FunctionType]] = []

    def __enter__(self) -> None:
        if DYNAMO in sys.modules:
            return
        # A recording around this one has set the others already.
        self._answered = [pair for pair in list_disabled() if ANSWER not in pair[0]]
        for attributes, function in self._answered:
            attributes[ANSWER] = function

    def __exit__(self, *_: object) -> None:
        """Make kernels ask dynamo again; also called once dynamo is imported."""
        for attributes, function in self._answered:
            if attributes.get(ANSWER) is function:
                del attributes[ANSWER]
        self._answered = []


@cache
def list_disabled() -> tuple[tuple[dict[str, Any], FunctionType], ...]:
    """Return the attributes of each function that asks dynamo, and its kernel."""
    codes = _compile._disable_dynamo.__code__.co_consts
    asking = [c for c in codes if isinstance(c, CodeType) and c.co_name == "inner"]
    todo = [*vars(_refs).values(), *vars(functional).values()]
    for table in global_decomposition_table.values():
        todo += table.values()
    seen: dict[FunctionType, None] = {}
    while todo:
        function = todo.pop()
        if isinstance(function, FunctionType) and function not in seen:
            seen[function] = None
            todo += [held for _, held in list_enclosed(function)]
    found = (dict(list_enclosed(f))["fn"] for f in seen if f.__code__ in asking)
    return tuple((vars(function), function) for function in found)


def list_enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values in a function's closure."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it was never assigned
            continue


def leave_dynamo_out() -> None:
    """Give torch an empty dynamo for good, if dynamo is not imported yet.

    For child processes that only try whether code runs: the import takes a second and
    writes files, which no trial may.
    """
    if DYNAMO not in sys.modules:
        empty: Any = ModuleType(DYNAMO)
        empty.disable = lambda function, *_, **__: function
        empty.set_stance = lambda *_, **__: nullcontext()
        empty.compiled_autograd = SimpleNamespace(_disable=nullcontext)  # of func.grad
        sys.modules[DYNAMO] = torch._dynamo = empty


def import_dynamo() -> None:
    """Import dynamo, as ``torch.distributed.pipelining`` does; it takes a second."""
    import torch._dynamo  # noqa: F401, PLC0415
