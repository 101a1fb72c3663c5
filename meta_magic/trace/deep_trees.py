"""Room for functions that call themselves for each level of a module tree.

Modules can be nested as deep as Python calls functions, and torch's own walks take one
call a level. Ours take a few.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from meta_magic.trace.modules import ModuleNode

__all__ = ["at_any_depth"]


class HasTrees(Protocol):
    """What has module trees: a trace."""

    @property
    def modules(self) -> tuple[ModuleNode, ...]:
        """Their roots."""


P = ParamSpec("P")
T = TypeVar("T")
Trees = TypeVar("Trees", bound=HasTrees)

CALLS_BY_LEVEL: Final = 8
SHALLOW: Final = 30
"""Levels for which there is room already."""


def at_any_depth(
    function: Callable[Concatenate[Trees, P], T],
) -> Callable[Concatenate[Trees, P], T]:
    """Let a function of a trace call itself as often as its module trees are deep."""

    @wraps(function)
    def run(trace: Trees, /, *args: P.args, **kwargs: P.kwargs) -> T:
        nodes = (node for root in trace.modules for node in root.walk())
        depth = max((node.fqn.count(".") for node in nodes), default=0)
        if depth <= SHALLOW:
            return function(trace, *args, **kwargs)
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + depth * CALLS_BY_LEVEL)
        try:
            return function(trace, *args, **kwargs)
        finally:
            sys.setrecursionlimit(limit)

    return run
