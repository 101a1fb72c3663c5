"""What a recording replaces in torch's own modules while it runs.

Each is a pair of the module, or class, and the name in it, as
:class:`meta_magic.torch_private.replacing.Replacements` takes them. Each comment says
what happens without the replacement.
"""

import sys
from types import ModuleType
from typing import Final, TypeAlias

import torch
from torch import _meta_registrations, _tensor_str
from torch.amp.autocast_mode import autocast as autocast_class
from torch.amp.grad_scaler import GradScaler
from torch.nested._internal import sdpa
from torch.nn import parameter
from torch.optim import optimizer
from torch.utils import _foreach_utils, checkpoint

Replaceable: TypeAlias = tuple[ModuleType | type, str]

# Code that runs in a cell for the first time stays uncompiled for ever.
DYNAMO: Final = "torch._dynamo"

# Meta kernels that differ by device behave as on CUDA.
DEVICE_OF_META_KERNELS: Final = (_meta_registrations, "device_hint")

# Autocast does nothing on meta.
AUTOCAST_INIT: Final = (autocast_class, "__init__")
AUTOCAST_ENTRY: Final = (autocast_class, "__enter__")
AUTOCAST_EXIT: Final = (autocast_class, "__exit__")

# Recomputed activations are cast otherwise, and drawn from another generator state.
DEVICE_OF_CHECKPOINT: Final = (checkpoint, "_infer_device_type")

# From torch 2.13 on: the loss of a linear layer is computed in chunks, and in a dtype,
# that no device uses.
DEVICE_OF_CHUNKED_LOSSES: Final = tuple(
    (module.LinearCrossEntropyOptions, "_adjust")
    for name, module in list(sys.modules.items())
    if name == "torch.nn.modules.linear_cross_entropy_options"
)

# Optimizers run the operators of meta, and not of a device.
FOREACH_DEVICES: Final = (_foreach_utils, "_get_foreach_kernels_supported_devices")
FOREACH_DEVICES_OF_OPTIMIZERS: Final = (
    optimizer,
    "_get_foreach_kernels_supported_devices",
)
FUSED_DEVICES: Final = (optimizer, "_get_fused_kernels_supported_devices")

# In each optimizer's module, which imports it by name: ``capturable=True`` is refused.
CAPTURABLE_DEVICES: Final = tuple(
    (module, "_get_capturable_supported_devices")
    for name, module in list(sys.modules.items())
    if name.startswith("torch.optim.")
    if hasattr(module, "_get_capturable_supported_devices")
)

# A lazy module that was made before the cell cannot be called in it.
FIRST_SIZES: Final = (parameter.UninitializedTensorMixin, "materialize")  # type: ignore[attr-defined]  # torch's stub lacks it

# Attention of nested tensors fails with a message that does not help.
ATTENTION_OF_NESTED: Final = (sdpa, "_autocast")

# ``torch.jit.trace`` compares results by value, which meta has none of.
CHECK_OF_TRACE: Final = (torch.jit._trace, "_check_trace")

# A new parameter, or tensor of a subclass, at the address of a tensor that is gone is
# mistaken for that tensor.
MAKE_SUBCLASS: Final = ((torch.Tensor, "_make_subclass"), (torch.Tensor, "as_subclass"))

# No tensor of a user's own subclass is made from another tensor.
MAKE_TENSOR: Final = (torch.Tensor, "__new__")

# In a cell that drew, the bytes of a generator's state differ from the CPU's, and a
# state that was loaded from a file cannot be set.
GENERATOR: Final = torch._C.Generator

# Tensors on meta are shown without values, and with no device but meta.
TEXT_OF_TENSOR: Final = (_tensor_str, "_str")

# A real module that a cell moves or casts stays on meta when the cell has ended.
APPLY_OF_MODULES: Final = (torch.nn.Module, "_apply")

# Attention cannot be scripted in a cell, as it calls a replaced builtin.
JIT_BUILTINS: Final = (torch.jit._builtins, "_find_builtin")

# ``torch.jit.trace`` takes the result of a convolution for a constant.
JIT_TRACES: Final = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
)

# Checkpointing does not restore the generator of a planned GPU, and draws another
# dropout when it recomputes.
CUDA_IS_THERE: Final = (torch.cuda, "_initialized")

# Scripts that look for bfloat16 ask for the version of CUDA, and plan half precision.
CUDA_VERSION: Final = (torch.version, "cuda")

# Hooks and custom functions make real tensors, and cannot read values.
RUN_BACKWARD: Final = (torch.autograd, "_engine_run_backward")

# Each step of a ``GradScaler`` replays the whole program before it.
STEP_OF_SCALER: Final = (GradScaler, "_maybe_opt_step")

# The storage of a meta tensor cannot be read.
STORAGE_READERS: Final = (
    (torch.storage._StorageBase, "__iter__"),
    (torch.UntypedStorage, "__getitem__"),
    (torch.TypedStorage, "__iter__"),
    (torch.TypedStorage, "_getitem"),
)


def enable_autocast(region: autocast_class, *, is_enabled: bool) -> None:
    """Turn on a region of autocast that torch turned off because it saw no CUDA.

    Without it autocast of CUDA does nothing on a machine without a GPU.
    """
    region._enabled = is_enabled
