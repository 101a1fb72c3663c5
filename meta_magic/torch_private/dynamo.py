"""What torch imports dynamo for although it compiles nothing."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch import _compile, _refs
from torch._decomp import global_decomposition_table
from torch._refs.nn import functional

from meta_magic.torch_private.replaced import DYNAMO

__all__ = ["KernelsWithoutDynamo", "leave_dynamo_out"]

ANSWER: Final = "__dynamo_disable"
"""Where ``torch._compile`` keeps a function that dynamo has made one to leave alone.

Without it torch imports dynamo, as plain torch does, half a second.
"""


class KernelsWithoutDynamo:
    """Context manager in which torch's kernels in Python do not import dynamo.

    Each asks dynamo, when first called, for itself as what dynamo leaves alone. As long
    as nobody has imported it nothing is compiled, and that is the kernel as it is.
    """

    def __init__(self) -> None:
        self._answered: list[tuple[dict[str, Any], FunctionType]] = []

    def __enter__(self) -> None:
        if DYNAMO in sys.modules:
            return
        # A recording around this one has answered already.
        self._answered = [pair for pair in list_left_alone() if ANSWER not in pair[0]]
        for attributes, function in self._answered:
            attributes[ANSWER] = function

    def __exit__(self, *_: object) -> None:
        """Have dynamo asked again; to be called also as soon as it was imported."""
        for attributes, function in self._answered:
            if attributes.get(ANSWER) is function:
                del attributes[ANSWER]
        self._answered = []


@cache
def list_left_alone() -> tuple[tuple[dict[str, Any], FunctionType], ...]:
    """Return what torch's kernels in Python call and dynamo is to leave alone.

    Returns:
        The attributes of each function, and it.
    """
    codes = _compile._disable_dynamo.__code__.co_consts
    asking = [c for c in codes if isinstance(c, CodeType) and c.co_name == "inner"]
    todo = [*vars(_refs).values(), *vars(functional).values()]
    for table in global_decomposition_table.values():
        todo += table.values()
    met: dict[FunctionType, None] = {}
    while todo:
        function = todo.pop()
        if isinstance(function, FunctionType) and function not in met:
            met[function] = None
            todo += [held for _, held in list_within(function)]
    found = (dict(list_within(f))["fn"] for f in met if f.__code__ in asking)
    return tuple((vars(function), function) for function in found)


def list_within(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of what a function has of the one that it is within."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it was never assigned
            continue


def leave_dynamo_out() -> None:
    """Have torch's own functions do without dynamo where it is not there yet, for good.

    To be called in a child that runs nothing of the user's any more, or only tries
    whether it runs. Without it the first of torch's kernels in Python imports dynamo,
    which takes a second, and writes files, which no trial may.
    """
    if DYNAMO not in sys.modules:
        stand_in: Any = ModuleType(DYNAMO)
        stand_in.disable = lambda function, *_, **__: function
        stand_in.set_stance = lambda *_, **__: nullcontext()
        sys.modules[DYNAMO] = torch._dynamo = stand_in
