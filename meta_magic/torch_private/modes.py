"""Torch's mode stacks, its default device, and the tracer of ``torch.jit``.

A recording is two modes on these stacks. Each comment says what breaks without the
names below it.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _functorch
from torch._C._dynamo import guards
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device, _python_dispatch

# The default device and the flags of modes cannot be restored.
device_module = _device
python_dispatch = _python_dispatch

# A set_default_device inside a cell cannot be undone.
GLOBAL_DEVICE_CONTEXT = torch._GLOBAL_DEVICE_CONTEXT

# torch.get_default_device() does not say "meta" in a cell.
DeviceContext = _device.DeviceContext

# A mode that a cell left open stays open.
dispatch_mode_stack: Callable[[], list[Any]] = (
    _python_dispatch._get_current_dispatch_mode_stack
)
pop_dispatch_mode: Callable[..., Any] = _python_dispatch._pop_mode
push_dispatch_mode: Callable[..., Any] = _python_dispatch._push_mode
function_mode_stack: Callable[[], list[Any]] = _get_current_function_mode_stack
pop_function_mode: Callable[..., Any] = _pop_mode
push_function_mode: Callable[..., Any] = _push_mode

# Reading a shape in a hook runs the user's function modes.
DisableTorchFunction = torch._C.DisableTorchFunction

# A module that is made on meta where function modes are disabled takes real memory.
EnableTorchFunction = torch._C._EnableTorchFunction

# The recorder records its own operators.
DisableTorchDispatch = torch._C._DisableTorchDispatch

# What a replay computes between two calls of the cell takes longer.
BelowAutograd = torch._C._AutoDispatchBelowAutograd

# Autocast around a replay changes the dtypes in it.
DisableAutocast = torch._C._DisableAutocast

# Values cannot be kept inside the transforms of torch.func, which wrap each new tensor.
BelowTransforms = torch._C._DisableFuncTorch

# Views that torch's decompositions make in inference mode count their own writes.
ExcludeKey = torch._C._SetExcludeDispatchKeyGuard

# A cached signature is used although the kernel would refuse the call.
is_deterministic = torch._C._get_deterministic_algorithms

# A real tensor's value is read although a mode, a tracer or a transform watches.
n_dispatch_modes = torch._C._len_torch_dispatch_stack
n_function_modes = torch._C._len_torch_function_stack
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
tracing_state = torch._C._get_tracing_state
functorch_interpreter = _functorch.peek_interpreter_stack

# Inside a transform, the tensor that it wraps cannot be reached.
get_unwrapped = _functorch.get_unwrapped
is_functorch_wrapped_tensor = _functorch.is_functorch_wrapped_tensor
is_batched = _functorch.is_batchedtensor

# Each size that the recorder reads becomes part of what torch.jit.trace traces.
set_tracing_state = torch._C._set_tracing_state  # type: ignore[attr-defined]  # not in its stub

# After a cell that left a mode open, dynamo believes for ever that it is active.
set_compile_internals_flag = guards.set_is_in_mode_without_ignore_compile_internals

# Flags of ``python_dispatch``; without the last, the flag that dynamo reads stays set.
DISPATCH_FLAGS: Final = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)

# A tensor made under a FakeTensorMode is on meta, and is mixed with tensors on the CPU.
fake_tensor_mode = partial(
    torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
)


class TorchDispatchMode(_python_dispatch.TorchDispatchMode):
    """The base of modes that see operators; without it nothing is recorded.

    Torch wraps ``__torch_dispatch__`` of other modes, so that the first operator under
    one imports dynamo, which takes half a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@cache
def device_constructors() -> frozenset[Any]:
    """Return the functions that build on the default device.

    Torch's own set lacks ``normal``, which then draws for real.
    """
    return frozenset(_device._device_constructors()) | {torch.normal}


def is_real_below(n_modes: int = 0) -> bool:
    """Whether no mode but some dispatch modes, no transform and no tracer is active.

    Forward differentiation counts as a transform: ``_current_level`` says if it is on.
    """
    return (
        n_dispatch_modes() == n_modes
        and forward_ad._current_level < 0
        and fake_tensor_mode() is None
        and functorch_interpreter() is None
        and tracing_state() is None
        and not is_any_autocast_enabled()
        and not torch.is_inference_mode_enabled()
    )


# The tracer cannot be stopped inside of an operator.
TRACER: Final[Any] = torch._C._parse_dispatch_key("Tracer")

# What torch.jit.trace writes of the backends into a convolution: benchmark,
# deterministic, enabled, tf32.
CUDNN: Final = (False, False, True, True)


class WithoutTracing:
    """Context manager in which ``torch.jit`` does not trace, and sizes are integers."""

    def __enter__(self) -> None:
        self._state = tracing_state()
        self._excluded = ExcludeKey(TRACER, False)  # noqa: FBT003  torch's own
        self._excluded.__enter__()
        set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        set_tracing_state(self._state)
        self._excluded.__exit__(None, None, None)


def trace_convolution(made: Tensor, args: Sequence[Any]) -> None:
    """Add a convolution, whose result is ``made``, to the graph of ``torch.jit.trace``.

    Torch traces ``_convolution``, which ``convolution`` calls on the CPU, and not on
    meta. Without it the result is a constant to the tracer.
    """
    with torch.no_grad(), DisableTorchDispatch():
        traced = torch.ops.aten._convolution.default(*args, *CUDNN)
    binding: Any = torch._C  # neither name is in its stub
    binding._set_value_trace(made, binding._get_value_trace(traced))


def make_fake(tensor: Tensor, other: Any, device: torch.device) -> Tensor:
    """Return the fake tensor for a tensor on meta, in the mode of another fake one.

    Without it a plain tensor that a model holds is on meta to ``torch.export``.
    """
    fake: Any = other.fake_mode.from_tensor(tensor, static_shapes=True)
    fake.fake_device = device
    return fake  # type: ignore[no-any-return]  # torch's own class
