"""Process groups of torch.distributed, as its operators are given them.

A group reaches an operator as an opaque object without a name. A recording keeps a text
of it, by which a replay finds the group again.
"""

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import ScriptObject, Tensor, distributed

__all__ = [
    "describe_group",
    "find_group",
    "find_real_group",
    "uses_group",
    "wait_for",
]

NAMESPACES: Final = (
    *("c10d.", "_c10d_functional.", "_c10d_functional_autograd."),
    *("_dtensor.", "symm_mem."),
)
GROUP: Final = "process group "
REDUCTION: Final = "a reduction"
FAKE: Final = "fake"


def uses_group(op: str) -> bool:
    """Whether an operator of this name may send to, or wait for, other processes."""
    return op.startswith(NAMESPACES)


def describe_group(value: object) -> str | None:
    """Return the text that stands for a group or a reduction; None for other values."""
    if not isinstance(value, ScriptObject):
        return None
    kind = value._type().qualified_name().rpartition(".")[2]
    if kind == "ReduceOp":
        return REDUCTION  # nothing tells a sum from a maximum
    if kind != "ProcessGroup":
        return None
    return GROUP + distributed.ProcessGroup.unbox(value).group_name


def find_group(text: str) -> Any:
    """Return what a text of :func:`describe_group` stands for; None of other texts.

    Any reduction will do where only one process takes part.

    Raises:
        RuntimeError: The group is no more.
    """
    if text == REDUCTION:
        return torch.classes.c10d.ReduceOp()
    if not text.startswith(GROUP):
        return None
    return find_by_name(text.removeprefix(GROUP)).boxed()


def find_by_name(name: str) -> Any:
    """Return the group of a name."""
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415  not in each build

    resolve: Any = c10d._resolve_process_group
    return resolve(name)


def find_real_group(given: Iterable[object]) -> Any:
    """Return a group of several real processes among arguments; None if none is."""
    for group in filter(None, map(read_group, given)):
        if group.size() > 1 and distributed.get_backend(group) != FAKE:
            return group
    return None


def read_group(value: object) -> Any:
    """Return the group that an argument is, or has the name of; None for others."""
    try:
        if type(value) is str:
            return find_by_name(value)
        text = describe_group(value)
        return None if text is None else find_by_name(text.removeprefix(GROUP))
    except RuntimeError:  # the word of a reduction, or a group that is no more
        return None


def wait_for(returned: Any) -> None:
    """Wait until a collective has written what it returned."""
    for value in returned if isinstance(returned, (tuple, list)) else (returned,):
        if isinstance(value, ScriptObject):
            distributed.Work.unbox(value).wait()
        elif isinstance(value, Tensor):
            torch.ops._c10d_functional.wait_tensor(value)
