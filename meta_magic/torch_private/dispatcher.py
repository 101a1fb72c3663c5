"""Operators as torch's dispatcher has them: schemas, kernels, keys, libraries."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import torch

# Without the first, higher-order operators cannot be run; without the second, the
# initializers that do nothing on meta have no schema.
from torch._C import DispatchKey, parse_schema

# Without these two nobody knows which operators autocast casts on a device, and how
# to call those that cast nothing themselves.
from torch._C import _dispatch_get_registrations_for_dispatch_key as list_kernels
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

# Without the first and the last higher-order operators are recorded as one, without
# what they run; without the second it is not known which operators torch takes apart.
from torch._ops import HigherOrderOperator, OpOverload
from torch._ops import _higher_order_ops as higher_order_operators

# Without it a call is served as it was before a library put in another kernel.
from torch.library import _impls as kernels_put_in

from meta_magic.torch_private.interrupts import unbroken

__all__ = [
    "ASKS_MODE",
    "DispatchKey",
    "HigherOrderOperator",
    "OpOverload",
    "add_kernel",
    "destroy_library",
    "find_schema",
    "forget_kernel",
    "has_kernel",
    "higher_order_operators",
    "is_python_excluded",
    "kernel_of",
    "kernels_put_in",
    "list_kernels",
    "override_kernel",
    "parse_schema",
    "run_kernel",
    "schema_of",
]

schema_of: Final = attrgetter("_schema")
"""Return an operator's schema. Without it no argument has a name, and nobody knows what
an operator writes."""

kernel_of: Final = attrgetter("_op")
"""Return what an operator calls with its arguments as they are. Without it a replay of
200,000 calls takes a third longer."""

ASKS_MODE: Final = "_get_current_dispatch_mode"
"""By this name kernels of higher-order operators assert that no mode is on. Without it
those refuse to run in a cell."""


def find_schema(operator: Any) -> torch.FunctionSchema | None:
    """Return an operator's schema; None of a higher-order one, which has none."""
    return getattr(operator, "_schema", None)


def run_kernel(
    operator: Any,
    key: DispatchKey,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run the kernel that an operator has for a key.

    Without ``_op_dk`` autocast's casts, and operators in inference mode, have no way to
    what is below them.
    """
    return operator._op_dk(key, *args, **kwargs)


def is_python_excluded() -> bool:
    """Whether torch hides from all modes what it runs now.

    Without it nobody knows that the values of a list are read for a new tensor.
    """
    return torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)


@unbroken
def override_kernel(
    library: torch.library.Library, name: str, kernel: Callable[..., Any]
) -> None:
    """Have an operator of a library run a kernel on meta, above autograd.

    Also over that of a recording around this one, which torch's own method refuses; it
    takes twice the time as well. Without the key ``AutogradMeta``, attention and
    autocast on meta are those of meta.
    """
    library.m.impl(name, "AutogradMeta", kernel)  # type: ignore[union-attr]  # as below


def add_kernel(
    library: torch.library.Library, name: str, kernel: Callable[..., Any]
) -> None:
    """Give an operator of a library a kernel for meta, which it has on devices.

    Without it autograd takes the operator apart there; torch's own method refuses.
    """
    library.m.impl(name, "Meta", kernel)  # type: ignore[union-attr]  # None at its end


@unbroken
def destroy_library(library: torch.library.Library) -> None:
    """Take back the kernels of a library; without it they stay after the cell."""
    library._destroy()


def forget_kernel(operator: Any, key: DispatchKey) -> None:
    """Have a higher-order operator look for its kernel of a key again.

    Without it the kernel that it ran first runs in cells, too, or after them.
    """
    operator._dispatch_cache.pop(key, None)
