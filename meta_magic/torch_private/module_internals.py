"""What ``torch.nn.Module`` holds, and functions of ``torch.nn`` with private names."""

from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from types import BuiltinFunctionType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import init
from torch.nn.modules import module as hooks_of_all

# Without it each recording leaves one entry behind: its handle forgets this one.
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs as hooks_with_kwargs,
)

__all__ = [
    "CALLING",
    "IS_ASSIGNING",
    "LOADED",
    "LOADING",
    "PREFIX",
    "are_hooks_ours",
    "buffers_of",
    "children_of",
    "hooks_with_kwargs",
    "initialize_truncated",
    "is_as_made",
    "is_changed",
    "is_made",
    "is_of_torch",
    "is_torch_calling",
    "is_torch_convolving",
    "list_script_tensors",
    "moves_itself",
    "names_not_persistent",
    "native_functions",
    "parameters_of",
    "parts_of",
    "pick_own",
    "replaced_natives",
    "walk_modules",
]

parameters_of: Final = attrgetter("_parameters")
"""Return a module's own parameters by name, None among them. Without it, and the next
two, a module tree cannot be described without running the module's own code."""

buffers_of: Final = attrgetter("_buffers")
children_of: Final = attrgetter("_modules")
parts_of: Final = attrgetter("_parameters", "_buffers", "__dict__")
"""Return the first two at once, and what else a module holds; without it they are asked
one after the other, for each module that there is when a recording ends."""

native_functions: Final = torch._C._nn
"""What ``functional.silu`` calls. Without it, and the next, they are served after what
they call was replaced."""

replaced_natives: Final[dict[str, Any]] = vars(torch._VF)
"""What ``functional.dropout`` calls in place of torch's own, if somebody put it in."""


KEPT_BY_TORCH: Final = frozenset(vars(nn.Module()))
"""Names under which torch keeps what it knows of a module, such as its hooks."""


@lru_cache(maxsize=4096)
def pick_own(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the names of what a module holds that are not torch's own."""
    return tuple([name for name in names if name not in KEPT_BY_TORCH])


def is_made(module: nn.Module) -> bool:
    """Whether torch's own ``__init__`` has run: before it a module can hold nothing.

    Without it a cell whose module forgot to call that has no trace.
    """
    return hasattr(module, "_modules")


def list_script_tensors(module: Any) -> list[tuple[Any, str, torch.Tensor]]:
    """Return the own parameters and buffers of a scripted module, with their holder.

    Without it a scripted module cannot be saved in a cell. One that is no such has none
    here.
    """
    owner = getattr(module, "_c", None)
    if owner is None:
        return []
    kinds: tuple[Any, ...] = (torch._C.ParameterDict, torch._C.BufferDict)
    return [(owner, name, t) for kind in kinds for name, t in kind(owner).items()]


def walk_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of all in a tree, parents first, each at every place.

    As ``named_modules(remove_duplicate=False)`` does, but at any depth, none within
    itself, and without what a class has in its place, which may change the modules:
    peft's does.
    """
    stack = [("", root, frozenset[int]())]
    while stack:
        fqn, module, above = stack.pop()
        children = children_of(module)
        if children and id(module) in above:
            continue
        yield fqn, module
        if children:
            prefix, around = f"{fqn}." if fqn else "", above | {id(module)}
            below = reversed(children.items())
            stack += [(prefix + name, m, around) for name, m in below if m is not None]


def is_changed(module: nn.Module) -> bool:
    """Whether a layer has hooks, or what stands for a method or parameter of it.

    Without it a layer would be served as a whole whose hooks are to run.
    """
    own = vars(module)
    try:
        return bool(
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or not own.keys().isdisjoint(STANDING_FOR)
        )
    except KeyError:  # torch's own ``__init__`` has not run
        return True


def are_hooks_ours() -> bool:
    """Whether of the hooks of all modules there are those of one recording alone.

    And whether torch's own code calls modules. Without it a layer would be served as a
    whole that others look at.
    """
    return (
        len(hooks_of_all._global_forward_hooks) == 1
        and len(hooks_of_all._global_forward_pre_hooks) == 1
        and not hooks_of_all._global_backward_hooks
        and not hooks_of_all._global_backward_pre_hooks
        and nn.Module.__call__ is CALL
        and nn.Module._call_impl is CALL_IMPL
        and nn.Module.__getattr__ is GETATTR
    )


def is_torch_calling() -> bool:
    """Whether torch's own code calls modules, and reads their parts.

    Without it what somebody put into ``nn.Module`` is passed over.
    """
    there = vars(nn.Module)
    return all(is_of_torch(there.get(name)) for name in METHODS) and not any(
        name in there for name in PARAMETERS
    )


def is_as_made(kind: type[nn.Module]) -> bool:
    """Whether nobody put anything into the class of a layer.

    Without it, that is passed over.
    """
    there = vars(kind)
    return there.keys().isdisjoint(OVERRIDING) and all(
        is_of_torch(there[name]) for name in CALLED if name in there
    )


def is_torch_convolving(kind: Any) -> bool:
    """Whether the method is torch's own that ``forward`` of a convolution calls.

    Without it what stands for that is passed over.
    """
    return kind._conv_forward is CONVOLVING[kind]


def is_of_torch(function: Any) -> bool:
    """Whether a function was written in C, or in a file of ``torch.nn``.

    Without it what stood in its place before this package was imported is taken for it.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return isinstance(function, BuiltinFunctionType)
    return bool(code.co_filename.startswith(NN_FILES))


NN_FILES: Final = nn.__file__.removesuffix("__init__.py")
CALL: Final = nn.Module.__call__
GETATTR: Final = nn.Module.__getattr__
CALL_IMPL: Final = nn.Module._call_impl
METHODS: Final = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__")
CONVOLVING: Final[dict[Any, Any]] = {
    kind: kind._conv_forward for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}
PARAMETERS: Final = ("weight", "bias")
CALLED: Final = ("forward", "_conv_forward")
STANDING_FOR: Final = (*CALLED, "_call_impl", "_compiled_call_impl", *PARAMETERS)
"""Names that a layer itself does not hold, unless somebody put them there."""

OVERRIDING: Final = frozenset({*METHODS[1:], "__getattribute__", *STANDING_FOR[2:]})
"""Names that the class of a layer does not hold, unless somebody put them there."""

names_not_persistent: Final = attrgetter("_non_persistent_buffers_set")
"""Return the names of the buffers that ``state_dict`` leaves out; without it those that
a checkpoint rightly lacks would be called missing."""

CALLING: Final = nn.Module._call_impl.__code__
"""What calls a module. Without it the call of torch that raised is in no module."""

LOADING: Final = nn.Module._load_from_state_dict.__code__
"""What runs while a state dict is loaded. Without it a copy into tensors without data,
which does nothing, is not recorded."""

LOADED: Final = "input_param"
IS_ASSIGNING: Final = "assign_to_params_buffers"
"""Names of variables there: what is loaded, and whether it takes the tensor's place."""

PREFIX: Final = "_no_grad_"
"""Of functions that run an initializer; without it a recording names them otherwise."""

initialize_truncated: Final = init._no_grad_trunc_normal_
"""What ``trunc_normal_`` runs; without it, it does nothing on meta, unseen."""


def moves_itself(module: nn.Module) -> bool:
    """Whether a class says itself how its tensors move, and takes all of them along.

    Without it each state of a metric is noted as one that stays behind.
    """
    return not type(module)._apply.__module__.startswith("torch.")
