"""What a recording replaces in torch's own modules, for as long as it runs.

Each is a pair of the module, or class, and the name in it, as
:class:`meta_magic.torch_private.replacing.Replacements` takes them.
"""

import sys
from types import ModuleType
from typing import Final, TypeAlias

import torch
from torch import _meta_registrations, _tensor_str
from torch.amp.autocast_mode import autocast as autocast_class
from torch.amp.grad_scaler import GradScaler
from torch.nested._internal import sdpa
from torch.nn.attention import flex_attention
from torch.optim import optimizer
from torch.utils import _foreach_utils, checkpoint

__all__ = [
    "APPLY_OF_MODULES",
    "ATTENTION_OF_NESTED",
    "AUTOCAST_ENTRY",
    "AUTOCAST_EXIT",
    "AUTOCAST_INIT",
    "CAPTURABLE_DEVICES",
    "CHECK_OF_FLEX_ATTENTION",
    "CHECK_OF_TRACE",
    "CUDA_IS_THERE",
    "DEVICE_OF_CHECKPOINT",
    "DEVICE_OF_CHUNKED_LOSSES",
    "DEVICE_OF_META_KERNELS",
    "DYNAMO",
    "FOREACH_DEVICES",
    "FOREACH_DEVICES_OF_OPTIMIZERS",
    "FUSED_DEVICES",
    "JIT_BUILTINS",
    "JIT_TRACES",
    "MAKE_PARAMETER",
    "MAKE_TENSOR",
    "RUN_BACKWARD",
    "STEP_OF_SCALER",
    "STORAGE_READERS",
    "TEXT_OF_TENSOR",
    "Replaceable",
    "enable_autocast",
]

Replaceable: TypeAlias = tuple[ModuleType | type, str]

DYNAMO: Final = "torch._dynamo"
"""Without it compiled code that meets a cell stays uncompiled for ever."""

DEVICE_OF_META_KERNELS: Final = (_meta_registrations, "device_hint")
"""Without it meta kernels that differ by device answer as CUDA's do."""

AUTOCAST_INIT: Final = (autocast_class, "__init__")
"""Without it, and the next two, autocast does nothing on meta."""

AUTOCAST_ENTRY: Final = (autocast_class, "__enter__")
AUTOCAST_EXIT: Final = (autocast_class, "__exit__")

DEVICE_OF_CHECKPOINT: Final = (checkpoint, "_infer_device_type")
"""Without it activations that are computed again are not cast as they were, nor drawn
from where they were."""

DEVICE_OF_CHUNKED_LOSSES: Final = tuple(
    (module.LinearCrossEntropyOptions, "_adjust")
    for name, module in list(sys.modules.items())
    if name == "torch.nn.modules.linear_cross_entropy_options"
)
"""From torch 2.13 on. Without it the loss of a linear layer is taken in chunks, and in
a dtype, that no device takes."""

FOREACH_DEVICES: Final = (_foreach_utils, "_get_foreach_kernels_supported_devices")
"""Without these three optimizers on meta are those of meta, and not of a device."""

FOREACH_DEVICES_OF_OPTIMIZERS: Final = (
    optimizer,
    "_get_foreach_kernels_supported_devices",
)
FUSED_DEVICES: Final = (optimizer, "_get_fused_kernels_supported_devices")

CAPTURABLE_DEVICES: Final = tuple(
    (module, "_get_capturable_supported_devices")
    for name, module in list(sys.modules.items())
    if name.startswith("torch.optim.")
    if hasattr(module, "_get_capturable_supported_devices")
)
"""In each optimizer's module, which imports it by name. Without them
``capturable=True`` is refused on meta."""

CHECK_OF_FLEX_ATTENTION: Final = (flex_attention, "_validate_device")
"""Without it ``flex_attention`` refuses meta tensors."""

ATTENTION_OF_NESTED: Final = (sdpa, "_autocast")
"""Without it attention of nested tensors fails in words that do not help."""

CHECK_OF_TRACE: Final = (torch.jit._trace, "_check_trace")
"""Without it ``torch.jit.trace`` compares results by value, which meta has none of."""

MAKE_PARAMETER: Final = (torch.nn.Parameter, "__new__")
"""Without it a parameter that takes the address of a tensor that is gone is mistaken
for that."""

MAKE_TENSOR: Final = (torch.Tensor, "__new__")
"""Without it no tensor of a class of the user's own is made of another tensor."""

TEXT_OF_TENSOR: Final = (_tensor_str, "_str")
"""Without it tensors on meta are shown without values, and with no device but meta."""
APPLY_OF_MODULES: Final = (torch.nn.Module, "_apply")
"""What moves or casts a module. Without it a real one that a cell moves stays on meta
when the cell has ended."""

JIT_BUILTINS: Final = (torch.jit._builtins, "_find_builtin")
"""Without it attention cannot be scripted in a cell, as it calls a replaced builtin."""

JIT_TRACES: Final = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
)
"""Without them ``torch.jit.trace`` takes what a convolution makes for a constant."""


CUDA_IS_THERE: Final = (torch.cuda, "_initialized")
"""Without it checkpointing does not put back the generator of a planned GPU, and draws
another dropout when it computes again."""

RUN_BACKWARD: Final = (torch.autograd, "_engine_run_backward")
"""Without it hooks and custom functions make real tensors, and cannot read values."""

STEP_OF_SCALER: Final = (GradScaler, "_maybe_opt_step")
"""Without it each step of a ``GradScaler`` replays all that came before."""


STORAGE_READERS: Final = (
    (torch.storage._StorageBase, "__iter__"),
    (torch.UntypedStorage, "__getitem__"),
    (torch.TypedStorage, "__iter__"),
    (torch.TypedStorage, "_getitem"),
)
"""Without them the storage of a meta tensor cannot be read."""


def enable_autocast(region: autocast_class, *, is_enabled: bool) -> None:
    """Turn a region of autocast on that torch turned off because it saw no CUDA.

    Without it autocast of CUDA does nothing on a machine that has none.
    """
    region._enabled = is_enabled
