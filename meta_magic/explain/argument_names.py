"""What the arguments of a function of torch are called."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

from meta_magic.session.raised_calls import call_module
from meta_magic.torch_private.dispatcher import schema_of
from meta_magic.trace.failed_call import FailedCall

__all__ = ["name_argument"]

VAR_ARGS, VAR_KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def name_argument(call: FailedCall, path: tuple[int | str, ...]) -> str:
    """Return an argument as one would write it, such as ``kernel_size[1]``.

    Args:
        call: The call.
        path: 0 for positional ones or 1 for those by name, then which, then the way
            into it.
    """
    _, first, *inner = path
    if call.function is call_module and first == 1:  # what the module is told
        name, *at = map(str, inner)
        return f"{call.receiver}.{name}" + "".join(f"[{number}]" for number in at)
    if isinstance(first, int):
        names = list_names(call.function)
        name = names[first] if first < len(names) else f"argument {first}"
    else:
        name = first
    return name + "".join(f"[{at!r}]" for at in inner)


@lru_cache(maxsize=1024)
def list_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional arguments, as far as torch tells."""
    try:
        named = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C++
        named = MappingProxyType({})
    kinds = {VAR_ARGS, VAR_KWARGS}
    if any(one.kind not in kinds for one in named.values()):
        return tuple(named)
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    overloads = [] if packet is None else packet.overloads()
    schemas = [schema_of(getattr(packet, name)) for name in overloads]
    names = [tuple(argument.name for argument in s.arguments) for s in schemas]
    return max(names, key=len, default=())
