"""Operators as torch's dispatcher has them: schemas, kernels, libraries.

Each comment says what breaks without the names below it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import torch
from torch import _ops
from torch._decomp import decomposition_table
from torch.library import _impls

from meta_magic.torch_private.interrupts import uninterrupted

OpOverload = _ops.OpOverload
DispatchKey = torch._C.DispatchKey

# Higher-order operators are recorded as one call, without the operators they run.
HigherOrderOperator = _ops.HigherOrderOperator
higher_order_operators = _ops._higher_order_ops

# Initializers that do nothing on meta have no schema.
parse_schema = torch._C.parse_schema

# Nobody knows which operators autocast casts on a device, nor how to call the others.
list_kernels = torch._C._dispatch_get_registrations_for_dispatch_key
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

# A signature from the cache is used after a library has put in another kernel.
kernels_put_in = _impls

# An operator's arguments have no names, and nobody knows what it writes.
schema_of: Final = attrgetter("_schema")

# What an operator calls with its arguments: a replay of 200,000 calls takes a third
# longer.
kernel_of: Final = attrgetter("_op")

# The name by which kernels of higher-order operators assert that no mode is active:
# they refuse to run in a cell.
ASKS_MODE: Final = "_get_current_dispatch_mode"

# Attention that a device runs by one of these is recorded and replayed as math.
attention_priorities = torch._C._get_sdp_priority_order
math_attention: Final = torch.ops.aten._scaled_dot_product_attention_math
flash_attention_on_cpu: Final = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
)
flash_attention: Final = torch.ops.aten._scaled_dot_product_flash_attention
efficient_attention: Final = torch.ops.aten._scaled_dot_product_efficient_attention
cudnn_attention: Final = torch.ops.aten._scaled_dot_product_cudnn_attention

# Linear algebra rounds otherwise than on the CPU.
singular_values: Final = torch.ops.aten._linalg_svd
symmetric_eigenvalues: Final = torch.ops.aten._linalg_eigh
eigenvalues: Final = torch.ops.aten._linalg_eigvals

# A loss over sequences is computed from lengths that have no values on meta.
loss_of_sequences: Final = torch.ops.aten._ctc_loss

# pack_padded_sequence refuses lengths on meta.
pack_padded: Final[Any] = torch._C._VariableFunctions._pack_padded_sequence
pad_packed: Final[Any] = torch._C._VariableFunctions._pad_packed_sequence

# A legacy constructor makes a real tensor, and operators mix it with meta tensors.
copy_to: Final[Any] = torch.ops.aten._to_copy.default

# torch.FloatTensor([loss]) fails.
read_scalar: Final[Any] = torch.ops.aten._local_scalar_dense.default


def find_schema(operator: Any) -> torch.FunctionSchema | None:
    """Return an operator's schema; None of a higher-order one, which has none."""
    return getattr(operator, "_schema", None)


def run_kernel(
    operator: Any, key: DispatchKey, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run the kernel that an operator has for a key.

    Without ``_op_dk``, autocast's casts and operators in inference mode cannot reach
    the kernel below their own.
    """
    return operator._op_dk(key, *args, **kwargs)


def is_python_excluded() -> bool:
    """Whether torch hides what it runs now from all modes.

    Without it nobody knows that the values of a list are read for a new tensor.
    """
    return torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)


FUSED_RMS_NORM: Final = "_fused_rms_norm"
"""An operator with a kernel on CUDA, and a composition for other devices.

Without it ``nn.RMSNorm`` on CUDA is recorded as six operators.
"""


def find_decomposition(operator: Any) -> Any:
    """Return torch's composition of other operators for an operator.

    Without it what CUDA alone has a kernel for could not be computed on the CPU.
    """
    return decomposition_table[operator]


@uninterrupted
def override_kernels(
    kernel_by_name: Mapping[str, Callable[..., Any]],
    below: Mapping[str, Callable[..., Any]] = {},
) -> torch.library.Library:
    """Make operators of torch run other kernels on meta, above autograd.

    ``Library.impl`` would refuse where a recording around this one has put in a kernel,
    and takes twice the time; torch warns of a second one. Without the key
    ``AutogradMeta``, attention and autocast on meta are those of meta. ``below`` has
    kernels below autograd, of operators that have one on devices and none on meta:
    without it autograd decomposes them on meta. Return a library for
    :func:`destroy_library`.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in kernel_by_name.items():
            library.m.impl(name, "AutogradMeta", kernel)  # type: ignore[union-attr]  # None at its end
        for name, kernel in below.items():
            library.m.impl(name, "Meta", kernel)  # type: ignore[union-attr]  # as above
    return library


@uninterrupted
def destroy_library(library: torch.library.Library) -> None:
    """Remove the kernels of a library; without it they stay after the cell."""
    library._destroy()


def forget_kernel(operator: Any, key: DispatchKey) -> None:
    """Make a higher-order operator look up its kernel for a key again.

    Without it the kernel that it ran first runs in cells, too, or after them.
    """
    operator._dispatch_cache.pop(key, None)
