"""The stacks of modes, the default device, and what else decides what a call does."""

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch

# Without it a set_default_device inside a cell cannot be undone.
from torch import _GLOBAL_DEVICE_CONTEXT as GLOBAL_DEVICE_CONTEXT

# Without it reading a shape in a hook runs the user's function modes.
from torch._C import DisableTorchFunction

# Without it autocast around a replay would change the dtypes in it.
from torch._C import _DisableAutocast as DisableAutocast

# Without it what values say of a tensor could not be kept inside of torch.func's
# transforms, which put a tensor of their own around each that is made.
from torch._C import _DisableFuncTorch as BelowTransforms

# Without it a served function's outputs would be recorded as operators.
from torch._C import _DisableTorchDispatch as DisableTorchDispatch

# Without it a module that is made on meta where these are disabled takes real memory.
from torch._C import _EnableTorchFunction as EnableTorchFunction

# Without it a signature could be served although the kernel would now refuse.
from torch._C import _get_deterministic_algorithms as is_deterministic

# Without these three, the interpreter stack and the level of forward mode, a function
# could be served although something watches it.
from torch._C import _get_tracing_state as tracing_state
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
from torch._C import _len_torch_dispatch_stack as n_dispatch_modes

# Without it each size that the recorder reads ends in what torch.jit.trace traces.
from torch._C import _set_tracing_state as set_tracing_state  # type: ignore[attr-defined]  # not in its stub

# Without it what torch takes apart in inference mode makes views that count for
# themselves.
from torch._C import _SetExcludeDispatchKeyGuard as ExcludeKey

# Without it dynamo believes for ever that a mode is active after a cell left one open.
from torch._C._dynamo.guards import (
    set_is_in_mode_without_ignore_compile_internals as set_compile_internals_flag,
)

# Without these three a tensor's own values are not reached from inside of a transform,
# nor told from those that are not one number.
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._C._functorch import is_batchedtensor as is_batched
from torch._C._functorch import peek_interpreter_stack as functorch_interpreter
from torch.autograd import forward_ad

# Without these three a function mode that a cell left open stays open.
from torch.overrides import (
    _get_current_function_mode_stack as function_mode_stack,
)
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode

# Without these two the default device and the mode flags cannot be put back.
from torch.utils import _device as device_module
from torch.utils import _python_dispatch as python_dispatch

# Without it torch.get_default_device() would not say "meta" in a cell, and factories
# would need a second function mode on every call.
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as constructors_of_torch

# Without it nothing is recorded.
from torch.utils._python_dispatch import (
    TorchDispatchMode,
)

# Without these a dispatch mode that a cell left open stays open.
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack as dispatch_mode_stack,
)
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode

__all__ = [
    "FLAGS",
    "GLOBAL_DEVICE_CONTEXT",
    "BelowTransforms",
    "DeviceContext",
    "DisableAutocast",
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "EnableTorchFunction",
    "ExcludeKey",
    "TorchDispatchMode",
    "device_constructors",
    "device_module",
    "dispatch_mode_stack",
    "fake_tensor_mode",
    "forward_mode_level",
    "function_mode_stack",
    "functorch_interpreter",
    "get_unwrapped",
    "is_any_autocast_enabled",
    "is_batched",
    "is_deterministic",
    "is_functorch_wrapped_tensor",
    "is_innermost",
    "is_real_below",
    "n_dispatch_modes",
    "pop_dispatch_mode",
    "pop_function_mode",
    "push_dispatch_mode",
    "push_function_mode",
    "python_dispatch",
    "set_compile_internals_flag",
    "set_tracing_state",
    "tracing_state",
]

push_dispatch_mode: Callable[..., None] = python_dispatch._push_mode
"""Put a mode on the stack; without it what a mode calls itself is not recorded."""


@cache
def device_constructors() -> frozenset[Any]:
    """Return the functions that are to build on the default device.

    Torch leaves ``normal`` out, which then draws for real.
    """
    return frozenset(constructors_of_torch()) | {torch.normal}


FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""Of ``python_dispatch``: without the last, the flag that dynamo reads stays set."""

fake_tensor_mode = partial(
    torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
)
"""Return the ``FakeTensorMode`` that is on, or None. Without it what a cell makes under
one is on meta, and meets what lies on the CPU there."""


def is_innermost(mode: object) -> bool:
    """Whether a function mode is the first to see each function, and sees it at all.

    Without it a layer could be served as a whole although another mode looks on.
    """
    n_modes = torch._C._len_torch_function_stack()
    return bool(
        n_modes
        and torch._C._get_function_stack_at(n_modes - 1) is mode
        and torch._C._is_torch_function_mode_enabled()
    )


def is_real_below() -> bool:
    """Whether operators on real tensors do no more, below the modes, than they say."""
    return (
        n_dispatch_modes() == 0
        and fake_tensor_mode() is None
        and functorch_interpreter() is None
        and tracing_state() is None
        and not is_any_autocast_enabled()
        and not torch.is_inference_mode_enabled()
    )


forward_mode_level = partial(attrgetter("_current_level"), forward_ad)
"""Return the level of forward-mode differentiation, negative outside of it; asked at
each served function, and so no function of Python."""
