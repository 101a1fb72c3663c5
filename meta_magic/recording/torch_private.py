"""Every private name of torch that the recorder stands on, in one place.

Each comment says what is lost if torch moves the name; ``tests/unit`` has a test that
fails by name when one is gone, so that a new release says so before a user does.
"""

# Without it a set_default_device inside a cell cannot be undone.
from torch import _GLOBAL_DEVICE_CONTEXT as GLOBAL_DEVICE_CONTEXT

# Without it meta kernels that differ by device answer as CUDA's do.
from torch import _meta_registrations as meta_kernels

# Without the first, reading a shape in a hook runs the user's function modes; without
# the second, the initializers that do nothing on meta have no schema; without the
# third, higher-order operators cannot be run.
from torch._C import DisableTorchFunction, DispatchKey, parse_schema

# Without it backward operators cannot be told from forward ones.
from torch._C import _current_autograd_node as current_autograd_node

# Without it autocast around a replay would change the dtypes in it.
from torch._C import _DisableAutocast as DisableAutocast

# Without it a served function's outputs would be recorded as operators.
from torch._C import _DisableTorchDispatch as DisableTorchDispatch

# Without these two nobody knows which operators autocast casts on a device, and how
# to call those that cast nothing themselves.
from torch._C import _dispatch_get_registrations_for_dispatch_key as list_kernels
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

# Without it a signature could be served although the kernel would now refuse.
from torch._C import _get_deterministic_algorithms as is_deterministic

# Without it the order in which CUDA's kernels of attention are tried is not known.
from torch._C import _get_sdp_priority_order as attention_priorities

# Without the next four a function could be served although something watches it.
from torch._C import _get_tracing_state as tracing_state
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
from torch._C import _len_torch_dispatch_stack as n_dispatch_modes

# Without it each size that the recorder reads ends in what torch.jit.trace traces.
from torch._C import _set_tracing_state as set_tracing_state  # type: ignore[attr-defined]

# Without it a materialized parameter is a new object, and an optimizer keeps the old.
from torch._C import _swap_tensor_impl as swap_tensor_impl

# Without it a backward operator cannot be tied to its forward operator.
from torch._C._autograd import _get_sequence_nr as next_sequence_number

# Without it dynamo believes for ever that a mode is active after a cell left one open.
from torch._C._dynamo.guards import (
    set_is_in_mode_without_ignore_compile_internals as set_compile_internals_flag,
)

# The fourth of those four.
from torch._C._functorch import peek_interpreter_stack as functorch_interpreter

# Without the first and the last higher-order operators are recorded as one, without
# what they run; without the second it is not known which operators torch takes apart.
from torch._ops import HigherOrderOperator, OpOverload
from torch._ops import _higher_order_ops as higher_order_operators

# Without it a convolution's output does not have the strides of any device.
from torch._prims_common import suggest_memory_format

# Without it a real tensor could not be lifted to meta as FakeTensorMode does it.
from torch._subclasses.meta_utils import MetaConverter

# Its methods are replaced: without it autocast does nothing on meta.
from torch.amp.autocast_mode import autocast as autocast_class

# Without it attention of nested tensors fails in words that do not help.
from torch.nested._internal import sdpa as nested_attention

# Without these two optimizers on meta are those of meta, and not of a device.
from torch.optim import optimizer as optimizer_module

# Without these three a function mode that a cell left open stays open.
from torch.overrides import (
    _get_current_function_mode_stack as function_mode_stack,
)
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode

# Without these two the default device and the mode flags cannot be put back.
from torch.utils import _device as device_module

# The second of those two.
from torch.utils import _foreach_utils as foreach_module
from torch.utils import _python_dispatch as python_dispatch

# Without it activations that are computed again are not cast as they were.
from torch.utils import checkpoint

# Without it torch.get_default_device() would not say "meta" in a cell, and factories
# would need a second function mode on every call.
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors

# Without it nothing is recorded.
from torch.utils._python_dispatch import (
    TorchDispatchMode,
)

# Without these a dispatch mode that a cell left open stays open.
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack as dispatch_mode_stack,
)
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode

__all__ = [
    "GLOBAL_DEVICE_CONTEXT",
    "DeviceContext",
    "DisableAutocast",
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "DispatchKey",
    "HigherOrderOperator",
    "MetaConverter",
    "OpOverload",
    "TorchDispatchMode",
    "attention_priorities",
    "autocast_class",
    "checkpoint",
    "current_autograd_node",
    "device_constructors",
    "device_module",
    "dispatch_mode_stack",
    "foreach_module",
    "function_mode_stack",
    "functorch_interpreter",
    "has_kernel",
    "higher_order_operators",
    "is_any_autocast_enabled",
    "is_deterministic",
    "list_kernels",
    "meta_kernels",
    "n_dispatch_modes",
    "nested_attention",
    "next_sequence_number",
    "optimizer_module",
    "parse_schema",
    "pop_dispatch_mode",
    "pop_function_mode",
    "push_dispatch_mode",
    "push_function_mode",
    "python_dispatch",
    "set_compile_internals_flag",
    "set_tracing_state",
    "suggest_memory_format",
    "swap_tensor_impl",
    "tracing_state",
]
