"""What ``torch.nn.Module`` holds, private functions of ``torch.nn``, and optimizers.

Each comment says what breaks without the names below it.
"""

from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn
from torch.nn import init
from torch.nn.modules import module as hooks_of_all

# Each recording adds an entry for good: the handle of a hook forgets this dictionary.
hooks_with_kwargs = hooks_of_all._global_forward_hooks_with_kwargs

# A module tree cannot be described without running the module's own code.
parameters_of: Final = attrgetter("_parameters")
buffers_of: Final = attrgetter("_buffers")
children_of: Final = attrgetter("_modules")
parts_of: Final = attrgetter("_parameters", "_buffers", "__dict__")

# Buffers that ``state_dict`` omits are called missing from a checkpoint.
names_not_persistent: Final = attrgetter("_non_persistent_buffers_set")

# Calls a module: a failed call is reported as one in no module.
CALLING: Final = nn.Module._call_impl.__code__

# Runs while a state dict is loaded: a copy into tensors without data, which does
# nothing, is not recorded.
LOADING: Final = nn.Module._load_from_state_dict.__code__

# Variables of that function: the loaded tensor, and whether it replaces the parameter.
LOADED: Final = "input_param"
IS_ASSIGNING: Final = "assign_to_params_buffers"

# The prefix of functions that run an initializer: recordings show the prefix.
PREFIX: Final = "_no_grad_"

# The function that ``trunc_normal_`` runs: on meta it does nothing, and leaves no row.
initialize_truncated: Final = init._no_grad_trunc_normal_

# The name of a parameter of ``FullyShardedDataParallel``: without it the views of this
# parameter are reported as tensors that do not move with the module.
FLAT_PARAMETER: Final = "_flat_param"

# Names under which torch keeps a module's own records, such as its hooks.
KEPT_BY_TORCH: Final = frozenset(vars(nn.Module()))


@lru_cache(maxsize=4096)
def pick_own(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a module's dictionary that are not torch's own."""
    return tuple([name for name in names if name not in KEPT_BY_TORCH])


def is_made(module: nn.Module) -> bool:
    """Whether ``Module.__init__`` has run: before it a module can hold nothing.

    Without it a cell whose module forgot ``super().__init__()`` has no trace.
    """
    return hasattr(module, "_modules")


def list_script_tensors(module: Any) -> list[tuple[Any, str, torch.Tensor]]:
    """Return holder, name and tensor of a scripted module's own parameters and buffers.

    Nothing for other modules. Without it a scripted module cannot be saved in a cell.
    """
    owner = getattr(module, "_c", None)
    if owner is None:
        return []
    kinds: tuple[Any, ...] = (torch._C.ParameterDict, torch._C.BufferDict)
    return [(owner, name, t) for kind in kinds for name, t in kind(owner).items()]


def walk_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of all in a tree, parents first, each by all its names.

    As ``named_modules(remove_duplicate=False)``, with three differences: it goes to any
    depth, it stops where a module contains itself, and it does not call a class's own
    ``named_modules``, which may change the modules, as peft's does.
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


def moves_itself(module: nn.Module) -> bool:
    """Whether a class overrides ``_apply``, and so moves all of its tensors.

    Without it each state of a metric is noted as one that is not moved.
    """
    return not type(module)._apply.__module__.startswith("torch.")
